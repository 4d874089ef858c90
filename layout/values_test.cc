#include "layout/values.h"

#include <csignal>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ValuesTest, BecomeSpansOfWhatTheyAre) {
  std::vector<double> doubles = {1, 2, 3};
  const Values values(doubles.data(), 3, DType::kFp64);
  EXPECT_EQ(values.size(), 3);
  EXPECT_EQ(values.size_bytes(), 24);
  absl::Span<double> span = values;
  span[1] = 7;
  EXPECT_EQ(doubles[1], 7);
  const ConstValues seen = values;
  EXPECT_EQ(seen.as<double>()[1], 7);
  EXPECT_EQ(ConstValues(absl::MakeConstSpan(std::vector<float>(2))).dtype(), DType::kFp32);
}

// Functions that know only floats stay as they are.
TEST(ValuesTest, FunctionsOfSpansTakeThem) {
  std::vector<float> floats = {1, 2};
  const std::function<void(Values)> writes = [](absl::Span<float> span) { span[0] = 5; };
  writes(absl::MakeSpan(floats));
  EXPECT_EQ(floats[0], 5);
  float sum = 0;
  const std::function<void(ConstValues)> reads = [&](absl::Span<const float> span) {
    for (const float value : span) sum += value;
  };
  reads(Values(absl::MakeSpan(floats)));
  EXPECT_EQ(sum, 7);
}

TEST(ValuesDeathTest, ReadingThemAsAnotherTypeEndsTheProcess) {
  std::vector<double> doubles = {1};
  const Values values = absl::MakeSpan(doubles);
  EXPECT_EXIT({ values.as<float>(); }, testing::KilledBySignal(SIGABRT), "");
  EXPECT_EXIT({ Values(doubles.data(), 1, DType::kBf16); }, testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace tessera
