// Gradients of three micro-batches under the hybrid strategies, on two workers with two ranks each,
// compared with a plain model, with and without checkpointing and offload. F2TR-21.
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

constexpr int kRanks = 4, kGroupSize = 2, kIterations = 5, kMicroBatches = 3;
// A gradient sums twelve backwards, and sees the roundings of all parameters of the steps before.
constexpr double kTolerance = 3e-6, kGradientTolerance = 2e-5;

struct Case {
  const char* name;
  Strategy strategy;
  bool checkpoints, cpu_offload;
};

// Of an iteration: the gradients before the step, and the parameters before and after it.
struct Iteration {
  Tensors gradients, before, after;
};

class HybridAccumulationTest : public ConformanceTest, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override { torch::set_num_threads(1); }

  SessionOptions HybridOptions() {
    LocalCluster::Options cluster;
    cluster.num_workers = kRanks / kGroupSize;
    cluster.num_devices = kGroupSize;
    auto started = LocalCluster::Start(cluster);
    EXPECT_OK(started);
    cluster_ = *std::move(started);
    SessionOptions options = Options(kRanks);
    options.config.strategy = GetParam().strategy;
    options.config.shard_group_size = kGroupSize;
    options.config.cpu_offload = GetParam().cpu_offload;
    options.config.gradient_slots = 0;
    options.config.groups[0].learning_rate = 0.01;  // Gradients are sums over micro-batches.
    return options;
  }

  static std::shared_ptr<MlpStack> Make(int64_t dim) {
    auto model = std::make_shared<MlpStack>(dim);
    model->checkpoints = GetParam().checkpoints;
    return model;
  }

  static torch::Tensor MicroLoss(MlpStack& model, int iteration, int micro_batch, int rank) {
    return LossOf(model, iteration * kMicroBatches + micro_batch, rank);
  }

  static Tensors GradientsOf(const torch::nn::Module& module) {
    Tensors gradients;
    for (const auto& item : module.named_parameters())
      gradients[item.key()] = item.value().grad().detach().clone();
    return gradients;
  }

  static std::vector<Iteration> PlainIterations(int64_t dim, const JobConfig& config) {
    const std::shared_ptr<MlpStack> plain = Make(dim);
    const auto optimizer = PlainOptimizer(*plain, config);
    std::vector<Iteration> iterations(kIterations);
    for (int i = 0; i < kIterations; ++i) {
      iterations[i].before = CopyOf(*plain);
      ForgetGradients(*plain);
      for (int m = 0; m < kMicroBatches; ++m) {
        for (int rank = 0; rank < kRanks; ++rank)
          (MicroLoss(*plain, i, m, rank) / kRanks).backward();
      }
      iterations[i].gradients = GradientsOf(*plain);
      optimizer->step();
      iterations[i].after = CopyOf(*plain);
    }
    return iterations;
  }

  static absl::Status TrainIteration(MlpStack& model, ShardedModel& sharded, int iteration,
                                     bool sync_each, const Iteration& expected) {
    for (int m = 0; m < kMicroBatches; ++m) {
      std::optional<ShardedModel::NoSync> no_sync;
      if (!sync_each && m + 1 < kMicroBatches) no_sync.emplace(&sharded);
      MicroLoss(model, iteration, m, sharded.session().rank()).backward();
    }
    SummonOptions summon;
    summon.writeback = false;
    summon.with_grads = true;
    const absl::Status status = sharded.SummonFullParams(summon, [&] {
      ExpectNear(GradientsOf(model), expected.gradients, kGradientTolerance);
      ExpectNear(CopyOf(model), expected.before, kTolerance);
      return absl::OkStatus();
    });
    return status.ok() ? sharded.Step() : status;
  }

  void Train(int64_t dim, bool sync_each) {
    const SessionOptions options = HybridOptions();
    const std::vector<Iteration> expected = PlainIterations(dim, options.config);
    ForEachRank(kRanks, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      own.worker_address = cluster_->worker_address(rank / kGroupSize);
      const std::shared_ptr<MlpStack> model = Make(dim);
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
      for (int i = 0; i < kIterations; ++i) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", iteration " << i);
        ASSERT_OK(sharded->RunStep(
            [&] { return TrainIteration(*model, *sharded, i, sync_each, expected[i]); }));
        ExpectNear(WholeParameters(sharded.get(), *model), expected[i].after, kTolerance);
      }
    });
  }
};

TEST_P(HybridAccumulationTest, GradientsAndParametersAreThePlainModelsBeforeAndAfterEachStep) {
  for (const int64_t dim : {3, 16, 17}) {
    for (const bool sync_each : {true, false}) {
      if (sync_each && GetParam().cpu_offload) continue;  // It is refused: GA-2.
      SCOPED_TRACE(::testing::Message() << "dim " << dim << ", sync each " << sync_each);
      Train(dim, sync_each);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, HybridAccumulationTest,
    testing::Values(Case{"Resharded", Strategy::kHybridShard, false, false},
                    Case{"ReshardedAndCheckpointed", Strategy::kHybridShard, true, false},
                    Case{"ReshardedAndOffloaded", Strategy::kHybridShard, false, true},
                    Case{"Kept", Strategy::kHybridShardZero2, false, false},
                    Case{"KeptAndCheckpointed", Strategy::kHybridShardZero2, true, false},
                    Case{"KeptCheckpointedAndOffloaded", Strategy::kHybridShardZero2, true, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::conformance
