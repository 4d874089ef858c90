// State dicts of hybrid strategies on two workers with two ranks each. HSDP-3, DCP4-1. Their
// checkpoints: hybrid_checkpoint_test.cc.
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

constexpr int kRanks = 4, kGroupSize = 2;

using Tensors = std::map<std::string, torch::Tensor>;

class HybridStateDictTest : public TorchCluster {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_workers = kRanks / kGroupSize;
    options.num_devices = kGroupSize;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  void OnEachHybridRank(const std::function<void(Trainer&)>& body) {
    ForEachRank(kRanks, [&](int rank) {
      SessionOptions options = OptionsFor(rank, kRanks);
      options.worker_address = cluster_->worker_address(rank / kGroupSize);
      options.config.strategy = Strategy::kHybridShard;
      options.config.shard_group_size = kGroupSize;
      options.config.optimizer = OptimizerKind::kAdam;
      options.config.groups[0].learning_rate = 0.01;
      Trainer trainer = {rank, MakeNet(), nullptr};
      ASSERT_OK_AND_ASSIGN(trainer.model, ShardedModel::Attach(trainer.net, options));
      body(trainer);
    });
  }
  static void Train(Trainer& trainer, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        LossOf(*trainer.net, step, trainer.rank).backward();
        return trainer.model->Step();
      }));
    }
  }
};

TEST_F(HybridStateDictTest, ModelAndOptimizerComeBackToTheBitAndRowsAreOfAGroup) {
  OnEachHybridRank([&](Trainer& trainer) {
    Train(trainer, 1, 3);
    StateDicts states(trainer.model.get());
    OptimStateDicts optim(trainer.model.get(), &states.types());
    ASSERT_OK(states.types().Set(*trainer.net, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(const StateDict model, states.Get(*trainer.net));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict moments, optim.Get());
    // in.weight has five rows: three of a group's first rank, two of its second one.
    EXPECT_EQ(model["in.weight"].tensor.size(0), trainer.rank % kGroupSize == 0 ? 3 : 2);
    EXPECT_EQ(moments.state["in.weight"].moments.at("exp_avg").begin,
              trainer.rank % kGroupSize == 0 ? 0 : 3);
    const Tensors saved = WholeParameters(trainer);
    Train(trainer, 3, 5);
    const Tensors later = WholeParameters(trainer);
    EXPECT_FALSE(torch::equal(later.at("in.weight"), saved.at("in.weight")));

    ASSERT_OK(states.Load(*trainer.net, model));
    ASSERT_OK(optim.Load(moments));
    const Tensors loaded = WholeParameters(trainer);
    for (const auto& [name, tensor] : saved)
      EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
    Train(trainer, 3, 5);
    const Tensors again = WholeParameters(trainer);
    for (const auto& [name, tensor] : later)
      EXPECT_TRUE(torch::equal(again.at(name), tensor)) << name;
  });
}

}  // namespace
}  // namespace tessera
