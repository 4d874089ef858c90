#include "tests/bench/report.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace bench {
namespace {

Row RowOf(Better better, double median) {
  Row row;
  row.goal = "G0";
  row.what = "a thing";
  row.value.median = median;
  row.better = better;
  row.target = better == Better::kLower ? 1.1 : 0.95;
  row.gate = better == Better::kLower ? 1.3 : 0.80;
  return row;
}

TEST(ReportTest, StandingSaysWhichBoundIsMet) {
  EXPECT_EQ("target met", Standing(RowOf(Better::kLower, 1.1)));
  EXPECT_EQ("gate met, target missed", Standing(RowOf(Better::kLower, 1.2)));
  EXPECT_EQ("GATE MISSED", Standing(RowOf(Better::kLower, 1.4)));
  EXPECT_EQ("target met", Standing(RowOf(Better::kHigher, 0.95)));
  EXPECT_EQ("gate met, target missed", Standing(RowOf(Better::kHigher, 0.9)));
  EXPECT_EQ("GATE MISSED", Standing(RowOf(Better::kHigher, 0.5)));
  EXPECT_EQ("", Standing(RowOf(Better::kNeither, 0.5)));
}

TEST(ReportTest, RatiosAreTakenRoundByRound) {
  const Quartiles ratio = RatioOf({2, 40, 6, 8, 10}, {1, 10, 2, 2, 2}, 10);
  EXPECT_EQ(30, ratio.low);
  EXPECT_EQ(40, ratio.median);
  EXPECT_EQ(40, ratio.high);
  EXPECT_EQ(0, QuartilesOf({}).median);
}

TEST(ReportTest, JsonHoldsEachRow) {
  const auto json = nlohmann::json::parse(Json({RowOf(Better::kLower, 1.4)}));
  EXPECT_EQ("GATE MISSED", json["rows"][0]["standing"]);
  EXPECT_EQ(1.3, json["rows"][0]["gate"]);
  EXPECT_GT(json["cores"], 0);
}

}  // namespace
}  // namespace bench
}  // namespace tessera
