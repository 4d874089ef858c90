// Loading state while executors die.
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

class StateDictsKillTest : public TorchCluster, public testing::WithParamInterface<const char*> {
 protected:
  // Each executor dies at its third write. One that replaces it may make two, so that in the end
  // all finish, in whatever order they die.
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {std::string("--fault-points=") + GetParam() + "=kill@3"};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }

  static void Train(Trainer& trainer, int64_t steps) {
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        LossOf(*trainer.net, step, trainer.rank).backward();
        return trainer.model->Step();
      }));
    }
  }
};

TEST_P(StateDictsKillTest, ParametersAreLoadedOnceOnAllRanksWhicheverProcessDies) {
  OnEachRank(2, [&](Trainer& trainer) {
    Train(trainer, 1);
    StateDicts states(trainer.model.get());
    ASSERT_OK(states.types().Set(*trainer.net, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(StateDict dict, states.Get(*trainer.net));
    for (const float value : {1.0f, 2.0f, 3.0f}) {
      for (auto& item : dict) item.value().tensor = torch::full_like(item.value().tensor, value);
      ASSERT_OK(states.Load(*trainer.net, dict));
      EXPECT_EQ(trainer.model->session().num_writes(), value);
      EXPECT_EQ(trainer.net->first->shift.min().item<float>(), value);
    }
    for (const auto& [name, value] : WholeParameters(trainer))
      EXPECT_TRUE(torch::equal(value, torch::full_like(value, 3))) << name;
    EXPECT_EQ(trainer.model->next_step(), 2);
  });
}

TEST_P(StateDictsKillTest, SoIsTheOptimizersState) {
  OnEachRank(2, [&](Trainer& trainer) {
    Train(trainer, 1);
    StateDictTypes types(&trainer.model->units());
    OptimStateDicts optim(trainer.model.get(), &types);
    ASSERT_OK_AND_ASSIGN(OptimStateDict dict, optim.Get());
    for (const float value : {1.0f, 2.0f, 3.0f}) {
      for (auto& item : dict.state) {
        torch::Tensor& moment = item.value().moments.at("momentum_buffer").tensor;
        moment = torch::full_like(moment, value);
      }
      dict.last_step = 10 * value;
      ASSERT_OK(optim.Load(dict));
      EXPECT_EQ(trainer.model->session().num_writes(), value);
      EXPECT_EQ(trainer.model->next_step(), 10 * value + 1);
    }
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    for (const auto& item : after.state) {
      const torch::Tensor& moment = item.value().moments.at("momentum_buffer").tensor;
      EXPECT_TRUE(torch::equal(moment, torch::full_like(moment, 3))) << item.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Points, StateDictsKillTest,
                         testing::Values("write.before-vote", "write.after-decision"));

}  // namespace
}  // namespace tessera
