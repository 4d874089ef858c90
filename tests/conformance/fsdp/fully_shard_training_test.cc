// The same model, data and optimizer under PyTorch's fully_shard (FSDP2, in real processes; its
// record is in tests/reference/torch/golden) and under Tessera give the same losses and parameters
// within rounding.
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/golden_training.h"

namespace tessera::conformance {
namespace {

// Losses are of the order of 0.5, parameters of the order of 0.1, and Adam divides small gradients
// by small roots, so a rounding of the gradient may show in the fifth digit of a step of 0.01.
constexpr Tolerance kTolerance = {/*loss=*/2e-6, /*parameter=*/2e-5};

class FullyShardTrainingTest : public testing::TestWithParam<Strategy> {};

TEST_P(FullyShardTrainingTest, LossesAndParametersAreThoseOfPyTorch) {
  const Json golden = ReadGolden("fully_shard_training");
  ASSERT_EQ(golden["runs"].size(), 4);
  for (const Json& run : golden["runs"]) {
    const int world_size = run["world_size"];
    const std::string name = absl::StrCat(run["optimizer"].get<std::string>(), "-", world_size);
    SCOPED_TRACE(name);
    LocalCluster::Options options;
    options.num_devices = world_size;
    ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
    TrainGolden({golden, run, name, GetParam(), *cluster, 1, kTolerance});
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, FullyShardTrainingTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                         Strategy::kNoShard));

}  // namespace
}  // namespace tessera::conformance
