#include "coordinator/service/live/put_verdict.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

constexpr WorkerPut kPending = WorkerPut::kPending, kApplied = WorkerPut::kApplied,
                    kOut = WorkerPut::kOut, kLost = WorkerPut::kLost;

constexpr PutVerdict kWait = PutVerdict::kWait, kWithdraw = PutVerdict::kWithdraw,
                     kSet = PutVerdict::kSet, kNotSet = PutVerdict::kNotSet,
                     kUnknown = PutVerdict::kUnknown;
struct Row {
  WorkerPut a, b;
  PutVerdict wanted, unwanted, over;
};

void ExpectVerdicts(const std::vector<Row>& table, bool has_replicas) {
  for (const Row& row : table) {
    for (const auto& [a, b] : {std::pair(row.a, row.b), std::pair(row.b, row.a)}) {
      EXPECT_EQ(Judge({a, b}, has_replicas, true, false), row.wanted);
      EXPECT_EQ(Judge({a, b}, has_replicas, false, false), row.unwanted);
      EXPECT_EQ(Judge({a, b}, has_replicas, false, true), row.over);
    }
  }
}

TEST(PutVerdictTest, EveryPairOfWorkers) {
  const std::vector<Row> same = {
      {kPending, kPending, kWait, kWithdraw, kUnknown},
      {kPending, kOut, kWithdraw, kWithdraw, kUnknown},
      {kPending, kLost, kWithdraw, kWithdraw, kUnknown},
      {kApplied, kApplied, kSet, kSet, kSet},
      {kOut, kOut, kNotSet, kNotSet, kNotSet},
      {kOut, kLost, kUnknown, kUnknown, kUnknown},
      {kLost, kLost, kUnknown, kUnknown, kUnknown},
  };
  ExpectVerdicts(same, /*has_replicas=*/false);
  ExpectVerdicts(same, /*has_replicas=*/true);
  ExpectVerdicts(
      {
          {kPending, kApplied, kWait, kWait, kSet},
          {kApplied, kOut, kSet, kSet, kSet},  // It has not learned of the decision yet.
          {kApplied, kLost, kSet, kSet, kSet},
      },
      /*has_replicas=*/false);
}

TEST(PutVerdictTest, OneReplicaThatHasItIsNoProof) {
  ExpectVerdicts(
      {
          {kPending, kApplied, kWait, kWait, kUnknown},
          {kApplied, kOut, kUnknown, kUnknown, kUnknown},
          {kApplied, kLost, kUnknown, kUnknown, kUnknown},
      },
      /*has_replicas=*/true);
}

TEST(OfferedPutTest, IsWithdrawnOnceAndThenWaitsForTheRest) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  OfferedPut put(2, /*has_replicas=*/false, absl::Seconds(5));
  EXPECT_EQ(put.Look(/*is_wanted=*/true, start + absl::Hours(1)), kWait) << "nobody has reported";
  EXPECT_EQ(put.Look(/*is_wanted=*/false, start), kWithdraw);
  EXPECT_EQ(put.Look(/*is_wanted=*/false, start), kWait);
  EXPECT_EQ(put.Look(/*is_wanted=*/false, start + absl::Seconds(4)), kWait);
  put.Report(0, kOut);
  EXPECT_FALSE(put.IsPending(0));
  EXPECT_TRUE(put.IsPending(1));
  EXPECT_EQ(put.Look(/*is_wanted=*/false, start + absl::Seconds(5)), kUnknown);
}

}  // namespace
}  // namespace tessera::coordinator
