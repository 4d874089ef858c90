// The state of an optimizer that PyTorch's DCP saved, in a trainer's own optimizer on shards,
// through a real cluster.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/torch/model_checkpoint.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tests/conformance/dcp/golden_folders.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::GoldenFolder;
using testing_support::ReadGoldenFolder;

// The folder's model is this one's first and last layer.
const std::map<std::string, std::string>& NamesInNet() {
  static const auto* names = new std::map<std::string, std::string>{{"0.weight", "in.weight"},
                                                                    {"0.bias", "in.bias"},
                                                                    {"2.weight", "out.weight"},
                                                                    {"2.bias", "out.bias"}};
  return *names;
}

// The same layers, and the first is a unit: the root's own parameters come before it by unit, and
// after it by registration.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl()
      : in(register_module("in", std::make_shared<Sharded<torch::nn::LinearImpl>>(3, 5))),
        out(register_module("out", torch::nn::Linear(5, 1))) {}
  torch::Tensor forward(torch::Tensor x) { return out->forward(in->forward(x)); }
  std::shared_ptr<Sharded<torch::nn::LinearImpl>> in;
  torch::nn::Linear out;
};
using TwoLayers = Sharded<TwoLayersImpl>;

class LoadDcpShardOptimizerTest : public TorchCluster {
 protected:
  // Weights of these layers in a group, and biases in another, as the folder "adamw" has them.
  static std::unique_ptr<ShardOptimizer> MakeAdamW(Trainer& trainer) {
    return MakeAdamW(trainer.model.get(), {"in.weight", "out.weight"}, {"in.bias", "out.bias"});
  }
  // In the order of the shards, whatever that of the names is.
  static std::unique_ptr<ShardOptimizer> MakeAdamW(ShardedModel* model,
                                                   const std::set<std::string>& first,
                                                   const std::set<std::string>& second) {
    auto own = ShardOptimizer::Create(model, [&](const std::vector<ShardTensor>& shards) {
      std::vector<torch::Tensor> groups[2];
      for (const ShardTensor& shard : shards) {
        if (first.count(shard.name) > 0) groups[0].push_back(shard.tensor);
        if (second.count(shard.name) > 0) groups[1].push_back(shard.tensor);
      }
      const torch::optim::AdamWOptions options(0.01);
      auto optimizer = std::make_unique<torch::optim::AdamW>(groups[0], options);
      optimizer->add_param_group(torch::optim::OptimizerParamGroup(
          groups[1], std::make_unique<torch::optim::AdamWOptions>(options)));
      return optimizer;
    });
    EXPECT_OK(own);
    return *std::move(own);
  }
  static std::function<void(SessionOptions*)> InTwoGroups(const std::string& job) {
    return [job](SessionOptions* options) {
      options->job_id = job;
      options->config.optimizer = OptimizerKind::kAdamW;
      ParamGroup& biases = options->config.groups.emplace_back();
      biases.parameter_names = {"in.bias", "out.bias"};
    };
  }
  static void TakeStep(Trainer& trainer, ShardOptimizer* own) {
    ASSERT_OK(trainer.model->RunStep([&] {
      LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
      return own->Step().status();
    }));
  }
  static void ExpectGolden(const GoldenFolder& golden, const OptimStateDict& dict) {
    EXPECT_EQ(dict.state.size(), NamesInNet().size());
    int64_t step = 3;
    for (const auto& [stored, name] : NamesInNet()) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(dict.state.contains(name));
      for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
        const auto& expected = golden.tensors.at(absl::StrCat("optim.state.", stored, ".", moment));
        const torch::Tensor found = dict.state[name].moments.at(moment).tensor;
        EXPECT_EQ(found.sizes().vec(), expected.shape);
        EXPECT_TRUE(torch::equal(
            found,
            torch::tensor(expected.values, torch::kDouble).to(torch::kFloat).view(expected.shape)))
            << moment;
      }
      step += dict.state[name].step;
    }
    EXPECT_EQ(step, 3 + 3 + 4 + 5 + 6);
    EXPECT_EQ(dict.state["in.weight"].step, 3);
    EXPECT_EQ(dict.state["out.bias"].step, 6);
  }
};

TEST_F(LoadDcpShardOptimizerTest, StateByNameAndByIdIsTheFoldersInAnyWorldAndTrainingGoesOn) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  GoldenFolder by_id = golden;
  testing_support::PutIds({{"0.weight", 0}, {"2.weight", 1}, {"0.bias", 2}, {"2.bias", 3}}, &by_id);
  const std::string folders[2] = {golden.WriteOut(), by_id.WriteOut()};
  for (const int world_size : {1, 3}) {
    for (const bool has_ids : {false, true}) {
      SCOPED_TRACE(absl::StrCat(world_size, has_ids ? " by id" : " by name"));
      OnEachRank(
          world_size,
          [&](Trainer& trainer) {
            const auto own = MakeAdamW(trainer);
            TakeStep(trainer, own.get());
            LoadOptimizerOptions options;
            options.strict = false;  // The net has more.
            if (!has_ids) options.renames = {{"0.", "in."}, {"2.", "out."}};
            ASSERT_OK_AND_ASSIGN(const std::vector<HyperParameters> groups,
                                 LoadOptimizerState(trainer.model.get(), own.get(),
                                                    folders[has_ids ? 1 : 0], options));
            EXPECT_EQ(groups[0].learning_rate, 0.25);
            EXPECT_EQ(groups[1].learning_rate, 0.5);
            EXPECT_EQ(trainer.model->next_step(), 2) << "it stays";
            ASSERT_OK_AND_ASSIGN(const OptimStateDict dict,
                                 GatherOptimState(trainer.model.get(), own.get()));
            ExpectGolden(golden, dict);
            TakeStep(trainer, own.get());
          },
          InTwoGroups(absl::StrCat("job-", world_size, has_ids ? "-ids" : "")));
    }
  }
}

TEST_F(LoadDcpShardOptimizerTest, IdsCountParametersAsTheModuleRegisteredThemNotByUnit) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  GoldenFolder by_id = golden;
  testing_support::PutIds({{"0.weight", 0}, {"2.weight", 1}, {"0.bias", 2}, {"2.bias", 3}}, &by_id);
  const std::string folder = by_id.WriteOut();
  std::vector<std::shared_ptr<TwoLayers>> nets;  // Made one after the other, of equal values.
  for (int rank = 0; rank < 2; ++rank) {
    torch::manual_seed(7);
    nets.push_back(std::make_shared<TwoLayers>());
  }
  ForEachRank(2, [&](int rank) {
    SessionOptions options = OptionsFor(rank, 2);
    InTwoGroups("job")(&options);
    auto attached = ShardedModel::Attach(nets[rank], options);
    ASSERT_OK(attached);
    ShardedModel* model = attached->get();
    const auto own = MakeAdamW(model, {"in.weight", "out.weight"}, {"in.bias", "out.bias"});
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, own->ParameterNames());
    ASSERT_EQ(names.front(), "out.weight") << "units have another order, or nothing is shown";
    EXPECT_OK(LoadOptimizerState(model, own.get(), folder));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, GatherOptimState(model, own.get()));
    ExpectGolden(golden, dict);
  });
}

TEST_F(LoadDcpShardOptimizerTest, IdsOfGroupsOfOtherSizesThanTheOptimizersAreRefused) {
  GoldenFolder by_id = ReadGoldenFolder("adamw");
  testing_support::PutIds({{"0.weight", 0}, {"2.weight", 1}, {"0.bias", 2}, {"2.bias", 3}}, &by_id);
  const std::string folder = by_id.WriteOut();
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own =
            MakeAdamW(trainer.model.get(), {"in.weight", "out.weight", "in.bias"}, {"out.bias"});
        EXPECT_THAT(LoadOptimizerState(trainer.model.get(), own.get(), folder),
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("groups of 2, 2 parameters, and there are names for groups "
                                       "of 3, 1")));
        TakeStep(trainer, own.get());
      },
      InTwoGroups("job"));
}

TEST_F(LoadDcpShardOptimizerTest, WhatDoesNotFitIsEveryRanksErrorAndTheOptimizerIsAsItWas) {
  const std::string folder = ReadGoldenFolder("adamw").WriteOut();
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own = MakeAdamW(trainer);
        TakeStep(trainer, own.get());
        const auto state = [&] {
          const auto dict = GatherOptimState(trainer.model.get(), own.get());
          EXPECT_OK(dict);
          return dict->state["in.weight"].moments.at("exp_avg").tensor.clone();
        };
        const torch::Tensor before = state();
        EXPECT_THAT(LoadOptimizerState(trainer.model.get(), own.get(), folder),
                    StatusIs(absl::StatusCode::kNotFound, HasSubstr("the folder has none of it")));
        EXPECT_TRUE(torch::equal(state(), before));
        TakeStep(trainer, own.get());
      },
      InTwoGroups("job"));
}

}  // namespace
}  // namespace tessera
