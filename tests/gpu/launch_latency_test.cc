// The latency of launches over a fake GPU, with this program as the executor's, too.
#include "tests/gpu/launch_latency.h"

#include <filesystem>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_gpu.h"

namespace tessera {
namespace gpu_check {
namespace {

TEST(LaunchLatencyTest, EachKindOfExecutorIsMeasuredFromTheTrainersCallOn) {
  ASSERT_OK_AND_ASSIGN(const auto gpu, testing_support::FindGpuUnderTest());
  LatencyOptions options;
  options.steps = 5;
  options.warm_up_steps = 2;
  options.numel = 1000;
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  ASSERT_OK_AND_ASSIGN(const std::vector<BenchRow> rows, BenchLaunchLatency(gpu, options));
  ASSERT_EQ(rows.size(), 2);
  for (const BenchRow& row : rows) {
    EXPECT_TRUE(row.measured()) << row.error;
    EXPECT_EQ(row.unit, "us");
    EXPECT_GT(row.value.low, 0) << row.name;
  }
  EXPECT_NE(rows[0].name, rows[1].name);
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  if (const auto ended = tessera::gpu_check::RunLatencyExecutor(
          argc, argv, tessera::testing_support::MakeFakeGpuDevice)) {
    return *ended;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
