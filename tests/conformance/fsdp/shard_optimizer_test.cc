// torch::optim in the trainer, on shards: the parameters are those of the unsharded model that the
// same optimizer trains, also where executors die meanwhile.
#include "tessera/torch/shard_optimizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/chain_model.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::ChainLoss;
using testing_support::CopyOf;
using testing_support::Values;

constexpr int kSteps = 5;

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

std::unique_ptr<torch::optim::Optimizer> MakeAdamW(std::vector<torch::Tensor> tensors) {
  return std::make_unique<torch::optim::AdamW>(std::move(tensors),
                                               torch::optim::AdamWOptions(0.02).weight_decay(0.1));
}

std::unique_ptr<torch::optim::Optimizer> MakeSgd(std::vector<torch::Tensor> tensors) {
  return std::make_unique<torch::optim::SGD>(
      std::move(tensors), torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.01));
}

// A step leaves one block out, so that its parameters have no gradient then.
std::vector<int> OrderOf(int64_t step) {
  return step % 2 == 0 ? std::vector<int>{0, 1, 3} : std::vector<int>{0, 1, 2, 3};
}

class ShardOptimizerTest : public testing_support::ChainTest {
 protected:
  Values PlainRun(const Make& make) {
    auto chain = MakeChain();
    const auto optimizer = make(chain->parameters());
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (torch::Tensor& parameter : chain->parameters()) parameter.mutable_grad().reset();
      chain->order = OrderOf(step);
      for (int rank = 0; rank < kWorldSize; ++rank)
        (ChainLoss(*chain, step, rank) / kWorldSize).backward();
      optimizer->step();
    }
    return CopyOf(*chain);
  }

  // Rank 0's view of the result; `redone` counts the tries that were repeated.
  Values ShardedRun(const std::string& job, const Make& make, int* redone = nullptr) {
    Values result;
    OnEachRank(job, nullptr, [&](Trainer& trainer) {
      ASSERT_OK_AND_ASSIGN(
          const auto own,
          ShardOptimizer::Create(trainer.model.get(), [&](const std::vector<ShardTensor>& shards) {
            return make(TensorsOf(shards));
          }));
      int own_redone = 0;
      while (trainer.model->next_step() <= kSteps) {
        const int64_t step = trainer.model->next_step();
        int tries = 0;
        const absl::Status status = trainer.model->RunStep([&] {
          ++tries;
          trainer.chain->order = OrderOf(step);
          ChainLoss(*trainer.chain, step, trainer.rank).backward();
          return own->Step().status();
        });
        ASSERT_OK(status);
        own_redone += tries - 1;
        ASSERT_EQ(trainer.model->next_step(), step + 1);
      }
      const Values values = WholeParameters(trainer);
      if (trainer.rank != 0) return;
      result = values;
      if (redone != nullptr) *redone = own_redone;
    });
    return result;
  }

  static void ExpectClose(const Values& values, const Values& expected) {
    ASSERT_EQ(values.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_LT((values.at(name) - tensor).abs().max().item<float>(), 2e-6f) << name;
  }
};

TEST_F(ShardOptimizerTest, AdamWTrainsAsOnTheUnshardedModel) {
  ExpectClose(ShardedRun("adamw", MakeAdamW), PlainRun(MakeAdamW));
}

TEST_F(ShardOptimizerTest, SgdWithMomentumTrainsAsOnTheUnshardedModel) {
  ExpectClose(ShardedRun("sgd", MakeSgd), PlainRun(MakeSgd));
}

TEST_F(ShardOptimizerTest, TensorsAreThisRanksPartsAndThoseOfNoPartAreEmpty) {
  OnEachRank("parts", nullptr, [&](Trainer& trainer) {
    int64_t elements = 0;
    bool some_are_empty = false;
    ASSERT_OK_AND_ASSIGN(
        const auto own,
        ShardOptimizer::Create(trainer.model.get(), [](const std::vector<ShardTensor>& shards) {
          return MakeSgd(TensorsOf(shards));
        }));
    Values whole = WholeParameters(trainer);
    EXPECT_EQ(own->shards().size(), whole.size());
    for (const ShardTensor& shard : own->shards()) {
      some_are_empty |= shard.tensor.numel() == 0;
      elements += shard.tensor.numel();
      const torch::Tensor expected =
          whole.at(shard.name)
              .view(-1)
              .slice(0, shard.begin_elements, shard.begin_elements + shard.tensor.numel());
      EXPECT_TRUE(torch::equal(shard.tensor.detach(), expected)) << shard.name;
    }
    // A shard has 32 elements at least, so rank 0 has something of each parameter.
    EXPECT_EQ(some_are_empty, trainer.rank == 1);
    EXPECT_GT(elements, 0);
  });
}

TEST_F(ShardOptimizerTest, ExceptionOfTheOptimizerIsEveryRanksErrorAndItsStateGoesBack) {
  struct Throwing : torch::optim::SGD {
    using SGD::SGD;
    torch::Tensor step(LossClosure closure = nullptr) override {
      torch::Tensor loss = SGD::step(closure);
      if (throws) throw std::runtime_error("no more");
      return loss;
    }
    bool throws = false;
  };
  const auto options = torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.01);
  const Values expected = PlainRun(MakeSgd);
  OnEachRank("throws", nullptr, [&](Trainer& trainer) {
    ASSERT_OK_AND_ASSIGN(
        const auto own,
        ShardOptimizer::Create(trainer.model.get(), [&](const std::vector<ShardTensor>& shards) {
          return std::make_unique<Throwing>(TensorsOf(shards), options);
        }));
    bool throws = true;
    while (trainer.model->next_step() <= kSteps) {
      const int64_t step = trainer.model->next_step();
      const bool fails = throws && step == 3;
      throws = !fails;
      static_cast<Throwing&>(own->optimizer()).throws = fails && trainer.rank == 1;
      const absl::Status status = trainer.model->RunStep([&] {
        trainer.chain->order = OrderOf(step);
        ChainLoss(*trainer.chain, step, trainer.rank).backward();
        return own->Step().status();
      });
      if (!fails) {
        ASSERT_OK(status);
      }
      if (fails) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, HasSubstr("no more")));
      }
    }
    const Values values = WholeParameters(trainer);
    if (trainer.rank == 0) ExpectClose(values, expected);
  });
}

class ShardOptimizerKillTest : public ShardOptimizerTest,
                               public testing::WithParamInterface<std::pair<const char*, bool>> {};

// Each executor dies there in the last step: the optimizer's state goes back where the step was
// undone, and stays where it was decided.
TEST_P(ShardOptimizerKillTest, ParametersAreTheUndisturbedOnesToTheBit) {
  const Values undisturbed = ShardedRun("undisturbed", MakeAdamW);
  LocalCluster::Options options;
  options.num_devices = kWorldSize;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {absl::StrCat("--fault-points=", GetParam().first, "=kill@", kSteps)};
  ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  int redone = -1;
  const Values values = ShardedRun("killed", MakeAdamW, &redone);
  ExpectSameBits(values, undisturbed, GetParam().first);
  if (GetParam().second) {
    EXPECT_EQ(redone, 0) << "a decided step is not done again";
  }
}

INSTANTIATE_TEST_SUITE_P(Points, ShardOptimizerKillTest,
                         testing::Values(std::pair("write.after-vote", false),
                                         std::pair("write.after-decision", true)),
                         [](const auto& info) { return info.param.second ? "decided" : "undone"; });

}  // namespace
}  // namespace tessera
