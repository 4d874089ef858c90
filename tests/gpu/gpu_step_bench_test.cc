#include "tests/gpu/gpu_step_bench.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
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
