#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

using testing::HasSubstr;

const std::vector<std::string>& Names() {
  static const auto* names = new std::vector<std::string>({"weight", "bias"});
  return *names;
}

// A layer that an optimizer has trained for some steps.
template <typename O>
struct Trained {
  explicit Trained(const typename O::OptionsForTest& options, int steps = 3)
      : layer(3, 2), optimizer(layer->parameters(), options) {
    for (int step = 0; step < steps; ++step) Step(step);
  }
  void Step(int step) {
    optimizer.zero_grad();
    layer->forward(torch::full({1, 3}, step + 1.0)).square().sum().backward();
    optimizer.step();
  }
  torch::nn::Linear layer;
  O optimizer;
};
struct Adam : torch::optim::Adam {
  using OptionsForTest = torch::optim::AdamOptions;
  using torch::optim::Adam::Adam;
};
struct AdamW : torch::optim::AdamW {
  using OptionsForTest = torch::optim::AdamWOptions;
  using torch::optim::AdamW::AdamW;
};
struct Sgd : torch::optim::SGD {
  using OptionsForTest = torch::optim::SGDOptions;
  using torch::optim::SGD::SGD;
};

template <typename O>
void ExpectGoesOnAlike(const typename O::OptionsForTest& options,
                       const typename O::OptionsForTest& other_options) {
  Trained<O> first(options), second(other_options, 0);
  const auto dict = OptimStateOf(first.optimizer, Names());
  ASSERT_OK(dict);
  EXPECT_EQ(ParamsOf(*dict), Names());
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i)
      second.layer->parameters()[i].copy_(first.layer->parameters()[i]);
  }
  ASSERT_OK(SetOptimState(*dict, Names(), &second.optimizer));
  first.Step(7);
  second.Step(7);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(torch::equal(second.layer->parameters()[i], first.layer->parameters()[i]));
}

TEST(TorchOptimStateTest, OptimizerThatIsGivenItGoesOnToTheSameBits) {
  ExpectGoesOnAlike<Adam>(torch::optim::AdamOptions(0.1).eps(1e-3), torch::optim::AdamOptions(0.5));
  ExpectGoesOnAlike<AdamW>(torch::optim::AdamWOptions(0.1).weight_decay(0.2),
                           torch::optim::AdamWOptions(0.5));
  ExpectGoesOnAlike<Sgd>(torch::optim::SGDOptions(0.01).momentum(0.9),
                         torch::optim::SGDOptions(0.5));
  ExpectGoesOnAlike<Sgd>(torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true),
                         torch::optim::SGDOptions(0.5));
  ExpectGoesOnAlike<Sgd>(torch::optim::SGDOptions(0.01).momentum(0.9).dampening(0.5),
                         torch::optim::SGDOptions(0.5).momentum(0.1).nesterov(true));
}

TEST(TorchOptimStateTest, OptimizerThatWouldGoOnDifferentlyIsRefusedAndNothingIsSet) {
  Trained<AdamW> decoupled(torch::optim::AdamWOptions(0.1).weight_decay(0.25));
  Trained<Adam> coupled(torch::optim::AdamOptions(0.1));
  ASSERT_OK_AND_ASSIGN(OptimStateDict dict, OptimStateOf(decoupled.optimizer, Names()));
  dict.state["bias"].step = 77;
  for (const auto& status : {SetOptimState(dict, Names(), &coupled.optimizer),
                             CheckOptimState(dict, Names(), coupled.optimizer)}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("param group 0 has weight decay that is decoupled")));
  }
  ASSERT_OK_AND_ASSIGN(const OptimStateDict after, OptimStateOf(coupled.optimizer, Names()));
  EXPECT_EQ(after.state["bias"].step, 3);
  // Without weight decay they are the same.
  dict.groups[0].numbers.weight_decay = 0;
  EXPECT_OK(SetOptimState(dict, Names(), &coupled.optimizer));
}

TEST(TorchOptimStateTest, WhatHasNoPlaceIsRefusedBeforeTheFirstStepToo) {
  Trained<Adam> amsgrad(torch::optim::AdamOptions(0.1).amsgrad(true), /*steps=*/0);
  EXPECT_THAT(OptimStateOf(amsgrad.optimizer, Names()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("amsgrad")));
  torch::nn::Linear layer(3, 2);
  torch::optim::RMSprop other(layer->parameters());
  EXPECT_THAT(OptimStateOf(other, Names()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Adam")));
}

TEST(TorchOptimStateTest, WhatDoesNotFitIsNamedAndNothingIsSet) {
  Trained<Adam> trained(torch::optim::AdamOptions(0.1));
  auto dict = OptimStateOf(trained.optimizer, Names());
  ASSERT_OK(dict);
  const auto refused = [&](const OptimStateDict& dict, absl::StatusCode code, const char* text) {
    EXPECT_THAT(SetOptimState(dict, Names(), &trained.optimizer), StatusIs(code, HasSubstr(text)));
    EXPECT_EQ(trained.optimizer.state().size(), 2);
  };
  OptimStateDict stranger = *dict;
  stranger.state.insert("stranger", OptimParamState());
  refused(stranger, absl::StatusCode::kNotFound, "'stranger'");
  OptimStateDict lacking = *dict;
  lacking.state["bias"].moments.erase("exp_avg_sq");
  refused(lacking, absl::StatusCode::kInvalidArgument, "'bias': there is no 'exp_avg_sq'");
  OptimStateDict shape = *dict;
  shape.state["bias"].moments["exp_avg"] = StateEntry::Whole(torch::ones({3}));
  refused(shape, absl::StatusCode::kInvalidArgument, "'bias', 'exp_avg': its shape is [3]");
  EXPECT_THAT(OptimStateOf(trained.optimizer, {"one"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 parameters")));
  torch::optim::Adagrad other(trained.layer->parameters());
  EXPECT_THAT(OptimStateOf(other, Names()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Adam")));
  EXPECT_THAT(SetOptimState(*dict, Names(), &other),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Adam")));
}

TEST(RekeyTest, NamesBecomeIdsAndNamesAgain) {
  Trained<Adam> trained(torch::optim::AdamOptions(0.1));
  auto dict = OptimStateOf(trained.optimizer, Names());
  ASSERT_OK(dict);
  dict->last_step = 3;
  ASSERT_OK_AND_ASSIGN(const OptimStateDict ids,
                       Rekey(*dict, OptimStateKeyType::kParamId, Names()));
  EXPECT_EQ(ids.state.keys(), std::vector<std::string>({"0", "1"}));
  EXPECT_EQ(ParamsOf(ids), std::vector<std::string>({"0", "1"}));
  EXPECT_EQ(ids.state["1"].step, 3);
  EXPECT_TRUE(ids.groups[0].formula.has_value());
  ASSERT_OK_AND_ASSIGN(const OptimStateDict names,
                       Rekey(ids, OptimStateKeyType::kParamName, Names()));
  EXPECT_EQ(names.state.keys(), Names());
  EXPECT_EQ(names.last_step, 3);
  EXPECT_TRUE(torch::equal(names.state["bias"].moments.at("exp_avg").tensor,
                           dict->state["bias"].moments.at("exp_avg").tensor));
}

TEST(RekeyTest, KeyThatIsNoneAndPartsOfUnitsAreRefused) {
  OptimStateDict dict;
  dict.state.insert("stranger", OptimParamState());
  EXPECT_THAT(Rekey(dict, OptimStateKeyType::kParamId, Names()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'stranger'")));
  OptimStateDict of_id;
  of_id.state.insert("2", OptimParamState());
  EXPECT_THAT(Rekey(of_id, OptimStateKeyType::kParamName, Names()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'2'")));
  OptimStateDict flat;
  OptimParamState unit;
  unit.moments["exp_avg"].kind = StateEntry::Kind::kFlat;
  flat.state.insert("_flat_param", unit);
  EXPECT_THAT(Rekey(flat, OptimStateKeyType::kParamId, Names()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'_flat_param'")));
}

}  // namespace
}  // namespace tessera
