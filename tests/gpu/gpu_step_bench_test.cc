#include "tests/gpu/gpu_step_bench.h"

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gpu/step_overlap.h"
#include "tests/gpu/step_work.h"

namespace tessera {
namespace gpu_check {
namespace {

StepBenchOptions Small() {
  StepBenchOptions options;
  options.rounds = 3;
  options.warm_up_rounds = 1;
  options.steps_per_round = 2;
  options.num_units = 3;
  options.unit_numel = 1000;
  options.forward_passes = 1;
  return options;
}

TEST(GpuStepBenchTest, EachWayIsMeasuredBesideThePlainStepsAndComputesTheSame) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, BenchSteps(gpu, Small()));
  ASSERT_EQ(rows.size(), 3);
  for (const BenchRow& row : rows) {
    EXPECT_TRUE(row.measured()) << row.error;
    EXPECT_EQ(row.unit, "us");
    EXPECT_GT(row.value.median, 0) << row.name;
  }
  EXPECT_EQ(rows[0].ratio_to, "");
  for (const size_t way : {1, 2}) {
    EXPECT_EQ(rows[way].ratio_to, rows[0].name);
    EXPECT_GT(rows[way].ratio.median, 0);
    EXPECT_EQ(rows[way].aim, 1 / 1.005);
    EXPECT_EQ(rows[way].gate, 1 / 1.02);
  }
}

TEST(StepOverlapTest, EachWayHasTimesAloneAndTogetherAndTheShareThatIsHidden) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, BenchStepOverlap(gpu, Small()));
  ASSERT_EQ(rows.size(), 1 + 2 * 3);
  std::set<std::string> names;
  for (const BenchRow& row : rows) {
    EXPECT_TRUE(row.measured()) << row.error;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  EXPECT_EQ(rows[0].unit, "us");
  EXPECT_GT(rows[0].value.low, 0);
  for (const size_t way : {1, 4}) {
    for (const size_t time : {way, way + 1}) {
      EXPECT_EQ(rows[time].unit, "us");
      EXPECT_GT(rows[time].value.low, 0) << rows[time].name;
    }
    EXPECT_EQ(rows[way + 1].ratio_to, rows[0].name);
    EXPECT_GT(rows[way + 1].ratio.low, 0);
    const BenchRow& share = rows[way + 2];
    EXPECT_EQ(share.unit, "");
    EXPECT_TRUE(std::isfinite(share.value.low) && std::isfinite(share.value.high)) << share.name;
    EXPECT_LE(share.value.low, share.value.median);
    EXPECT_LE(share.value.median, share.value.high);
  }
}

TEST(StepOverlapTest, ShareIsOfTheShorterAndOfEachRound) {
  const std::vector<double> compute = {10, 10, 10, 4, 10}, work = {4, 4, 4, 10, 4},
                            both = {10, 14, 12, 10, 15};
  EXPECT_EQ(HiddenShares(compute, work, both), (std::vector<double>{1, 0, 0.5, 1, -0.25}));
}

TEST(PlainTrainingTest, StepsMoveEveryParameterAgainstItsOwnSign) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  ASSERT_OK_AND_ASSIGN(const auto device, gpu.make_device(0));
  HyperParameters numbers;
  numbers.learning_rate = 0.125;
  ASSERT_OK_AND_ASSIGN(const auto training,
                       PlainTraining::Create(device.get(), {2, 97, 1}, numbers));
  ASSERT_OK(training->Step());
  std::vector<uint16_t> halves(97);
  training->model().kernels().Copy(halves.data(), training->halves(1), 2 * 97);
  ASSERT_OK(training->model().kernels().Finish());
  for (int64_t i = 0; i < 97; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    const float initial = InitialElement(1, i);  // Which is the gradient, too, rounded.
    const float step = initial == 0 ? 0 : initial > 0 ? -0.125f : 0.125f;
    EXPECT_NEAR(value, initial + step, 0.01) << i;
  }
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
