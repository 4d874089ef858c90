// Modules and parameters that stay the user's. Comments name items of the conformance checklist.
#include "base/status_matchers.h"
#include "client/torch/module_units.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/torch/attach_options.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> NamesOf(const UnitSpec& unit) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : unit.parameters) names.push_back(spec.name);
  return names;
}

class IgnoredTest : public TorchCluster {
 protected:
  // Three steps with `ignored` in the hands of the user's optimizer; the same data on every rank,
  // so that the user need not reduce.
  void TrainsAsThePlainNet(const std::function<IgnoredStates(Net&)>& ignore,
                           const std::function<std::vector<torch::Tensor>(Net&)>& parameters) {
    auto plain = MakeNet();
    torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(0.5));
    for (int64_t step = 1; step <= 3; ++step) {
      optimizer.zero_grad();
      LossOf(*plain, step, 0).backward();
      optimizer.step();
    }
    const auto expected = CopyOf(*plain);
    ForEachRank(2, [&](int rank) {
      Trainer trainer = {rank, MakeNet(), nullptr};
      AttachOptions attach;
      attach.ignored = ignore(*trainer.net);
      auto model = ShardedModel::Attach(trainer.net, OptionsFor(rank, 2), AlwaysWrap(), attach);
      ASSERT_OK(model);
      trainer.model = *std::move(model);
      torch::optim::SGD own(parameters(*trainer.net), torch::optim::SGDOptions(0.5));
      for (int64_t step = 1; step <= 3; ++step) {
        ASSERT_OK(trainer.model->RunStep([&] {
          own.zero_grad();
          LossOf(*trainer.net, step, 0).backward();
          return trainer.model->Step();
        }));
        own.step();
      }
      const auto actual = WholeParameters(trainer);
      ASSERT_EQ(actual.size(), expected.size()) << "an ignored parameter keeps its name";
      for (const auto& [name, value] : expected)
        EXPECT_TRUE(torch::allclose(actual.at(name), value, 1e-5, 1e-6)) << name;
    });
  }
};

TEST_F(IgnoredTest, ModuleIsInNoUnitAndTrainsByTheUsersOptimizer) {  // IGN-1
  auto net = MakeNet();
  ASSERT_OK_AND_ASSIGN(const ModuleUnits units,
                       FindUnits(*net, AlwaysWrap(), {{net->in.ptr()}, {}}));
  EXPECT_THAT(NamesOf(units.model.units[0]), ElementsAre("unused", "out.weight", "out.bias"));
  TrainsAsThePlainNet(
      [](Net& net) {
        return IgnoredStates{{net.in.ptr()}, {}};
      },
      [](Net& net) { return net.in->parameters(); });
}

TEST_F(IgnoredTest, SingleParametersAreInNoUnitAndDoNotCountForAPolicy) {  // IGN-1, IGN-3
  auto net = MakeNet();
  const IgnoredStates ignored = {{}, {net->first->linear->weight, net->out->bias}};
  ASSERT_OK_AND_ASSIGN(const ModuleUnits units, FindUnits(*net, AlwaysWrap(), ignored));
  EXPECT_THAT(NamesOf(units.model.units[1]), ElementsAre("first.linear.bias"));
  EXPECT_THAT(NamesOf(units.model.units[0]),
              ElementsAre("unused", "in.weight", "in.bias", "out.weight"));
  ASSERT_OK_AND_ASSIGN(const ModuleUnits by_size, FindUnits(*net, WrapBySize({20}), ignored));
  ASSERT_EQ(by_size.modules.size(), 2);
  EXPECT_EQ(by_size.model.units[1].name, "second") << "of the first, 5 elements are left";
  TrainsAsThePlainNet(
      [](Net& net) {
        return IgnoredStates{{}, {net.first->linear->weight, net.out->bias}};
      },
      [](Net& net) {
        return std::vector<torch::Tensor>{net.first->linear->weight, net.out->bias};
      });
}

// A plain module with a unit in it.
struct BoxImpl : torch::nn::Module {
  BoxImpl() {
    layer = register_module("layer", std::make_shared<Layer>(3));
    own = register_parameter("own", torch::ones({4}));
  }
  std::shared_ptr<Layer> layer;
  torch::Tensor own;
};
struct BoxedImpl : torch::nn::Module {
  BoxedImpl() {
    box = register_module("box", std::make_shared<BoxImpl>());
    other = register_parameter("other", torch::ones({2}));
  }
  void forward() {}
  std::shared_ptr<BoxImpl> box;
  torch::Tensor other;
};

TEST_F(IgnoredTest, UnitBelowAnIgnoredModuleStaysAUnit) {  // IGN-2
  Sharded<BoxedImpl> root;
  ASSERT_OK_AND_ASSIGN(ModuleUnits units, FindUnits(root, AlwaysWrap(), {{root.box}, {}}));
  ASSERT_EQ(units.model.units.size(), 2);
  EXPECT_THAT(NamesOf(units.model.units[0]), ElementsAre("other"));
  EXPECT_THAT(NamesOf(units.model.units[1]),
              ElementsAre("box.layer.linear.weight", "box.layer.linear.bias"));
  ASSERT_OK_AND_ASSIGN(
      units, FindUnits(root, WrapIf([](const WrapCandidate&) { return false; }), {{root.box}, {}}));
  ASSERT_EQ(units.model.units.size(), 1) << "no unit by the policy: all below is ignored";
  EXPECT_THAT(NamesOf(units.model.units[0]), ElementsAre("other"));
}

TEST_F(IgnoredTest, WhatIsWrongIsNamed) {  // IGN-4, IGN-7
  auto net = MakeNet();
  const auto refused = [&](const IgnoredStates& ignored, const char* why) {
    EXPECT_THAT(FindUnits(*net, AlwaysWrap(), ignored),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({{net->first}, {}}, "an ignored module (");
  refused({{net->first}, {}}, "is a unit");
  refused({{net}, {}}, "the root module cannot be ignored");
  refused({{net->in.ptr()}, {net->unused}}, "both given");
  refused({{nullptr}, {}}, "null");
  refused({{}, {torch::Tensor()}}, "undefined");
}

// A module whose ranks have different parts that nobody shards.
struct UnevenImpl : NetImpl {
  explicit UnevenImpl(int extras) {
    for (int i = 0; i < extras; ++i) {
      extra.push_back(register_module("extra" + std::to_string(i),
                                      torch::nn::Linear(torch::nn::LinearOptions(1, 1))));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    x = NetImpl::forward(x);
    for (auto& linear : extra) x = linear->forward(x);
    return x;
  }
  std::vector<torch::nn::Linear> extra;
};

TEST_F(IgnoredTest, RanksMayIgnoreDifferentThingsAndWhatIsNotInTheTree) {  // IGN-5, IGN-6
  ForEachRank(2, [&](int rank) {
    std::shared_ptr<Sharded<UnevenImpl>> net;
    {
      absl::MutexLock lock(&seed_mu_);
      torch::manual_seed(3);
      net = std::make_shared<Sharded<UnevenImpl>>(rank + 1);
    }
    AttachOptions attach;
    for (auto& linear : net->extra) attach.ignored.modules.push_back(linear.ptr());
    attach.ignored.modules.push_back(torch::nn::Linear(2, 2).ptr());
    auto model = ShardedModel::Attach(net, OptionsFor(rank, 2), AlwaysWrap(), attach);
    ASSERT_OK(model);
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_OK((*model)->RunStep([&] {
        net->forward(torch::ones({2, 3})).sum().backward();
        return (*model)->Step();
      }));
      EXPECT_TRUE(net->extra.back()->weight.grad().defined()) << "it is the user's";
    }
  });
}

}  // namespace
}  // namespace tessera
