// Modules that cannot be sharded as they are: refused by name when they attach, never by an
// exception, and what is only unusual trains.
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RefusedModulesTest : public TorchCluster {
 protected:
  void ExpectRefused(const std::shared_ptr<Net>& net, const std::string& name,
                     const std::string& why,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_THAT(ShardedModel::Attach(net, OptionsFor(0, 1)).status(),
                StatusIs(code, AllOf(HasSubstr(name), HasSubstr(why))));
    EXPECT_THAT(PlanUnits(*net, OptionsFor(0, 1).config),
                StatusIs(code, AllOf(HasSubstr(name), HasSubstr(why))));
  }
  void ExpectTrains(const std::shared_ptr<Net>& net) {
    ASSERT_OK_AND_ASSIGN(const auto model, ShardedModel::Attach(net, OptionsFor(0, 1)));
    ASSERT_OK(model->RunStep([&] {
      LossOf(*net, 1, 0).backward();
      return model->Step();
    }));
  }
  std::shared_ptr<Net> WithParameter(const torch::Tensor& tensor) {
    const std::shared_ptr<Net> net = MakeNet();
    net->register_parameter("odd", tensor, /*requires_grad=*/false);
    return net;
  }
  std::shared_ptr<Net> WithBuffer(const torch::Tensor& tensor) {
    const std::shared_ptr<Net> net = MakeNet();
    net->first->register_buffer("odd", tensor);
    return net;
  }
};

TEST_F(RefusedModulesTest, ParametersOfOtherDTypesAndLayouts) {
  const torch::Tensor dense = torch::ones({3, 3});
  ExpectRefused(WithParameter(dense.to(torch::kComplexFloat)), "'odd'", "Complex");
  ExpectRefused(WithParameter(dense.to(torch::kBool)), "'odd'", "Bool");
  ExpectRefused(WithParameter(dense.to_sparse()), "'odd'", "Sparse");
  ExpectRefused(WithParameter(torch::quantize_per_tensor(dense, 0.1, 0, torch::kQInt8)), "'odd'",
                "quantized");
  ExpectRefused(WithParameter(torch::ones({1, 3}).expand({3, 3})), "'odd'", "expanded");
}

TEST_F(RefusedModulesTest, BuffersOfOtherLayouts) {
  const torch::Tensor dense = torch::ones({3, 3});
  ExpectRefused(WithBuffer(dense.to_sparse()), "'first.odd'", "Sparse");
  ExpectRefused(WithBuffer(torch::quantize_per_tensor(dense, 0.1, 0, torch::kQInt8)), "'first.odd'",
                "quantized");
}

TEST_F(RefusedModulesTest, UnusualBuffersAndParametersTrain) {
  ExpectTrains(WithBuffer(torch::ones({1, 3}).expand({3, 3})));
  ASSERT_NO_FATAL_FAILURE(SetUp());
  ExpectTrains(WithBuffer(torch::ones({2}, torch::kComplexDouble)));
  ASSERT_NO_FATAL_FAILURE(SetUp());
  ExpectTrains(WithBuffer(torch::ones({2}, torch::kComplexFloat).conj()));
  ASSERT_NO_FATAL_FAILURE(SetUp());
  ExpectTrains(WithBuffer(torch::empty({0, 4})));
  ASSERT_NO_FATAL_FAILURE(SetUp());
  ExpectTrains(WithParameter(torch::arange(6.0).view({2, 3}).t()));
  ASSERT_NO_FATAL_FAILURE(SetUp());
  ExpectTrains(WithParameter(torch::empty({0})));
}

TEST_F(RefusedModulesTest, TensorsThatShareMemoryAreNamed) {
  const std::shared_ptr<Net> tied = MakeNet();
  tied->second->linear->weight.set_data(tied->first->linear->weight);
  ExpectRefused(tied, "'first.linear.weight' and parameter 'second.linear.weight'",
                "register one tensor in both places");
  const std::shared_ptr<Net> viewed = MakeNet();
  viewed->register_buffer("seen", viewed->in->weight.detach()[1]);
  ExpectRefused(viewed, "'in.weight' and buffer 'seen'", "share memory");
  const std::shared_ptr<Net> sliced = MakeNet();  // Of one tensor, but no element twice.
  const torch::Tensor both = torch::ones({2, 5, 5});
  sliced->first->linear->weight.set_data(both[0]);
  sliced->second->linear->weight.set_data(both[1]);
  const torch::Tensor wide = torch::ones({1, 10});
  sliced->register_parameter("left", wide.narrow(1, 0, 5), false);
  const torch::Tensor square = torch::ones({4, 6});  // Columns, whose memory interleaves.
  sliced->register_parameter("columns", square.narrow(1, 0, 3), false);
  sliced->register_parameter("others", square.narrow(1, 3, 3), false);
  ExpectTrains(sliced);
  const std::shared_ptr<Net> crossed = MakeNet();
  crossed->register_parameter("columns", square.narrow(1, 0, 3), false);
  crossed->register_parameter("rows", square.narrow(0, 3, 1).narrow(1, 2, 2), false);
  ExpectRefused(crossed, "'columns' and parameter 'rows'", "share memory");
}

TEST_F(RefusedModulesTest, ModuleThatAnEarlierModelEmptied) {
  const std::shared_ptr<Net> net = MakeNet();
  ExpectTrains(net);
  ExpectRefused(net, "'unused'", "was attached before", absl::StatusCode::kFailedPrecondition);
}

TEST_F(RefusedModulesTest, RootThatIsNullOrNoShardedModule) {
  EXPECT_THAT(ShardedModel::Attach(nullptr, OptionsFor(0, 1)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root module is null")));
  EXPECT_THAT(ShardedModel::Attach(std::make_shared<torch::nn::LinearImpl>(2, 2), OptionsFor(0, 1))
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a tessera::Sharded<>")));
}

TEST_F(RefusedModulesTest, ParameterThatAnotherModelHasIsNamed) {
  const std::shared_ptr<Net> first = MakeNet(), second = MakeNet();
  second->register_module("shared", first->in);  // A plain module, which no unit marks.
  SessionOptions options = OptionsFor(0, 1);
  ASSERT_OK_AND_ASSIGN(auto model, ShardedModel::Attach(first, options));
  ExpectRefused(second, "'shared.weight'", "another ShardedModel",
                absl::StatusCode::kFailedPrecondition);
  ASSERT_OK(model->RunStep([&] {
    LossOf(*first, 1, 0).backward();
    return model->Step();
  }));
}

// What came into the tree after attaching would be left as it is in silence.
TEST_F(RefusedModulesTest, ParameterThatIsRegisteredAfterAttachingIsNamedByTheStep) {
  const auto expect_refused = [&](const std::string& name,
                                  const std::function<void(Net&)>& change) {
    ASSERT_NO_FATAL_FAILURE(SetUp());
    const std::shared_ptr<Net> net = MakeNet();
    ASSERT_OK_AND_ASSIGN(const auto model, ShardedModel::Attach(net, OptionsFor(0, 1)));
    change(*net);
    EXPECT_THAT(model->RunStep([&] {
      LossOf(*net, 1, 0).backward();
      return model->Step();
    }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(name), HasSubstr("registered after"))));
  };
  expect_refused("'late'", [](Net& net) { net.register_parameter("late", torch::ones({3})); });
  expect_refused("'first.late.weight'",
                 [](Net& net) { net.first->register_module("late", torch::nn::Linear(2, 2)); });
  expect_refused("'out.weight'",
                 [](Net& net) { net.out = net.replace_module("out", torch::nn::Linear(5, 1)); });
}

TEST_F(RefusedModulesTest, WhatIsAddedOrTakenOutAfterAttachingAndIsNotTrainedChangesNothing) {
  const std::shared_ptr<Net> net = MakeNet();
  ASSERT_OK_AND_ASSIGN(auto model, ShardedModel::Attach(net, OptionsFor(0, 1)));
  net->register_parameter("late", torch::ones({3}), /*requires_grad=*/false);
  net->unregister_module("second");
  net->second = nullptr;  // The model still has its parameters.
  for (int step = 1; step <= 2; ++step) {
    ASSERT_OK(model->RunStep([&] {
      net->Call([](NetImpl& n) {
           return n.out->forward(n.first->forward(n.in->forward(torch::ones({2, 3}))));
         })
          .square()
          .mean()
          .backward();
      return model->Step();
    }));
  }
  model.reset();
}

// One module under two names is one unit, and trains as the plain one does.
TEST_F(RefusedModulesTest, ModuleThatIsRegisteredTwiceTrains) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() {
      one = register_module("one", std::make_shared<Layer>(5));
      register_module("again", one);
    }
    torch::Tensor forward(torch::Tensor x) { return one->forward(one->forward(x)); }
    std::shared_ptr<Layer> one;
  };
  torch::manual_seed(1);
  auto plain = std::make_shared<TwiceImpl>();
  torch::manual_seed(1);
  auto net = std::make_shared<Sharded<TwiceImpl>>();
  const torch::Tensor x = torch::sin(torch::arange(10)).view({2, 5});
  plain->forward(x).square().mean().backward();
  torch::NoGradGuard no_grad;
  plain->one->linear->weight -= 0.5 * plain->one->linear->weight.grad();
  torch::AutoGradMode grad(true);
  ASSERT_OK_AND_ASSIGN(const auto model, ShardedModel::Attach(net, OptionsFor(0, 1)));
  EXPECT_EQ(model->session().num_units(), 1);
  ASSERT_OK(model->RunStep([&] {
    net->forward(x).square().mean().backward();
    return model->Step();
  }));
  SummonOptions read_only;
  read_only.writeback = false;
  ASSERT_OK(model->SummonFullParams(read_only, [&] {
    EXPECT_TRUE(torch::allclose(net->one->linear->weight, plain->one->linear->weight, 1e-5, 1e-6));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tessera
