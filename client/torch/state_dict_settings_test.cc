#include "base/status_matchers.h"
#include "client/torch/module_units.h"
#include "gtest/gtest.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using Inner = Sharded<torch::nn::LinearImpl>;
struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : a(register_module("a", std::make_shared<Inner>(2, 2))),
        b(register_module("b", std::make_shared<Inner>(2, 2))),
        own(register_module("own", torch::nn::Linear(2, 2))) {}
  torch::Tensor forward(torch::Tensor x) { return x; }
  std::shared_ptr<Inner> a, b;
  torch::nn::Linear own;
};
using Outer = Sharded<OuterImpl>;

class StateDictTypesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto units = FindUnits(*model_, AlwaysWrap());
    ASSERT_OK(units);
    units_ = *std::move(units);
    types_ = std::make_unique<StateDictTypes>(&units_);
  }
  StateDictType TypeOf(const torch::nn::Module& module) {
    const auto settings = types_->Get(module);
    EXPECT_OK(settings);
    return settings.ok() ? settings->type : StateDictType::kFull;
  }

  const std::shared_ptr<Outer> model_ = std::make_shared<Outer>();
  ModuleUnits units_;
  std::unique_ptr<StateDictTypes> types_;
};

TEST_F(StateDictTypesTest, SettingReachesAllUnitsBelowAndReturnsWhatItWas) {
  EXPECT_EQ(TypeOf(*model_), StateDictType::kFull);
  const StateDictSettings full = {StateDictType::kFull, FullStateDictConfig{true, true}};
  ASSERT_OK(types_->Set(*model_, full));
  ASSERT_OK_AND_ASSIGN(const StateDictSettings before,
                       types_->Set(*model_, {StateDictType::kSharded}));
  EXPECT_TRUE(before == full);
  EXPECT_TRUE(before.model_rank0_only() && before.model_offload_to_cpu());
  for (const torch::nn::Module* module : {static_cast<const torch::nn::Module*>(model_->a.get()),
                                          static_cast<const torch::nn::Module*>(model_->b.get()),
                                          static_cast<const torch::nn::Module*>(model_.get())})
    EXPECT_EQ(TypeOf(*module), StateDictType::kSharded);
}

TEST_F(StateDictTypesTest, UnitsThatDifferAreAnErrorByNameAndNothingIsSet) {
  ASSERT_OK(types_->Set(*model_->a, {StateDictType::kLocal}));
  EXPECT_THAT(types_->Get(*model_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a' has LOCAL_STATE_DICT")));
  EXPECT_THAT(types_->Set(*model_, {StateDictType::kSharded}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'root'")));
  EXPECT_EQ(TypeOf(*model_->a), StateDictType::kLocal);
  EXPECT_EQ(TypeOf(*model_->b), StateDictType::kFull);
  // The type alone is not all.
  ASSERT_OK(types_->Set(*model_->a, {StateDictType::kFull, FullStateDictConfig{false, true}}));
  EXPECT_THAT(types_->Get(*model_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another config")));
  ASSERT_OK(types_->Set(*model_->a, {StateDictType::kFull, FullStateDictConfig{}}));
  EXPECT_OK(types_->Get(*model_));
}

// SD-12.
TEST_F(StateDictTypesTest, ConfigOfAnotherTypeIsRefused) {
  StateDictSettings settings = {StateDictType::kFull, ShardedStateDictConfig{}};
  EXPECT_THAT(types_->Set(*model_, settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a config of FULL_STATE_DICT for the state dict of the "
                                 "model, but got one of SHARDED_STATE_DICT")));
  settings = {StateDictType::kLocal, LocalStateDictConfig{}, FullOptimStateDictConfig{}};
  EXPECT_THAT(types_->Set(*model_, settings),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer")));
  EXPECT_EQ(TypeOf(*model_), StateDictType::kFull);
}

// SD-14.
TEST_F(StateDictTypesTest, WhatItWasComesBackWithTheEndOfAScope) {
  {
    ASSERT_OK_AND_ASSIGN(const auto outer, types_->Use(*model_, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(const auto inner, types_->Use(*model_->b, {StateDictType::kLocal}));
    EXPECT_EQ(TypeOf(*model_->b), StateDictType::kLocal);
    EXPECT_EQ(TypeOf(*model_->a), StateDictType::kSharded);
  }
  EXPECT_EQ(TypeOf(*model_), StateDictType::kFull);
  EXPECT_EQ(TypeOf(*model_->b), StateDictType::kFull);
}

TEST_F(StateDictTypesTest, ModuleWithoutUnitsHasNone) {
  EXPECT_THAT(types_->Get(*model_->own),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no unit")));
}

TEST_F(StateDictTypesTest, OptimizersConfigsOffloadByDefaultAndModelsDoNot) {
  StateDictSettings settings;
  EXPECT_FALSE(settings.model_offload_to_cpu());
  settings.optimizer = FullOptimStateDictConfig{};
  EXPECT_TRUE(settings == StateDictSettings());
  settings.optimizer = FullOptimStateDictConfig{false};
  EXPECT_FALSE(settings == StateDictSettings());
}

}  // namespace
}  // namespace tessera
