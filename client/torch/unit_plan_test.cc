// A dry run says what training would take, and needs neither a server nor the parameters' values.
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// 30 elements; aligned to 32 (weight 25 -> 28, bias 5 -> 8 of 4 fp32 each).
struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    register_parameter("weight", torch::ones({5, 5}));
    register_parameter("bias", torch::ones({5}));
  }
  torch::Tensor forward(torch::Tensor x) { return x; }
};

struct RootImpl : torch::nn::Module {
  RootImpl() {
    register_parameter("head", torch::ones({7}));
    for (int i = 0; i < 2; ++i) {
      register_module(absl::StrCat("layer", i), std::make_shared<Sharded<LayerImpl>>());
    }
  }
};

JobConfig TwoRanks(Strategy strategy) {
  JobConfig config;
  config.world_size = 2;
  config.strategy = strategy;
  config.layout.shard_alignment_bytes = 0;
  return config;
}

TEST(UnitPlanTest, SaysUnitsSizesPaddingMemoryAndTraffic) {
  Sharded<RootImpl> root;
  ASSERT_OK_AND_ASSIGN(const UnitPlan plan, PlanUnits(root, TwoRanks(Strategy::kFullShard)));
  ASSERT_EQ(plan.model.units.size(), 3);
  ASSERT_EQ(plan.layout.units.size(), 3);
  int64_t shards = 0;
  for (const UnitLayout& unit : plan.layout.units) shards += unit.shards.shard_numel() * 4;
  EXPECT_EQ(plan.memory.parameter_bytes, shards);
  EXPECT_EQ(plan.memory.optimizer_bytes, 2 * shards);
  const int64_t root_shard = plan.layout.units[0].shards.shard_numel() * 4;
  EXPECT_EQ(plan.traffic.gathered_bytes, 2 * shards - root_shard) << "the other of two ranks'";
  EXPECT_EQ(plan.traffic.reduced_bytes, shards);
  EXPECT_GE(plan.mapped_bytes, plan.memory.rank_total_bytes);
  for (const char* text :
       {"units (ranks: 2, compute fp32)", "layer1", "memory per rank", "FULL_SHARD", "gathers"}) {
    EXPECT_THAT(plan.text, HasSubstr(text));
  }
}

TEST(UnitPlanTest, PolicyAndConfigChangeThePlan) {
  Sharded<RootImpl> root;
  ASSERT_OK_AND_ASSIGN(const UnitPlan one, PlanUnits(root, TwoRanks(Strategy::kFullShard),
                                                     WrapBySize({/*min_numel=*/31})));
  EXPECT_EQ(one.model.units.size(), 1);
  EXPECT_EQ(one.traffic.gathered_bytes, one.traffic.reduced_bytes) << "the root is gathered once";
  ASSERT_OK_AND_ASSIGN(const UnitPlan kept, PlanUnits(root, TwoRanks(Strategy::kShardGradOp)));
  EXPECT_EQ(kept.traffic.gathered_bytes, kept.traffic.reduced_bytes);
  JobConfig sgd = TwoRanks(Strategy::kFullShard);
  sgd.optimizer = OptimizerKind::kSgd;
  ASSERT_OK_AND_ASSIGN(const UnitPlan stateless, PlanUnits(root, sgd));
  EXPECT_EQ(stateless.memory.optimizer_bytes, 0);
}

TEST(UnitPlanTest, LimitOfGatheringAheadInBytesIsTheConfigs) {
  Sharded<RootImpl> root;
  JobConfig config = TwoRanks(Strategy::kFullShard);
  config.compute_dtype = DType::kBf16;  // So that what is gathered is a copy.
  ASSERT_OK_AND_ASSIGN(const UnitPlan both, PlanUnits(root, config));
  config.max_gathered_bytes = 1;
  ASSERT_OK_AND_ASSIGN(const UnitPlan one, PlanUnits(root, config));
  EXPECT_EQ(both.memory.unsharded_parameter_bytes - one.memory.unsharded_parameter_bytes,
            both.layout.units[1].shards.padded_numel() * 2);
}

TEST(UnitPlanTest, ChangesNothingInTheModule) {
  Sharded<RootImpl> root;
  ASSERT_OK(PlanUnits(root, TwoRanks(Strategy::kFullShard)).status());
  EXPECT_FALSE(root.attached());
  for (const torch::Tensor& parameter : root.parameters()) {
    EXPECT_TRUE(torch::equal(parameter, torch::ones_like(parameter)));
  }
}

TEST(UnitPlanTest, WhatCouldNotBeTrainedIsRefusedAsTheCoordinatorWould) {
  Sharded<RootImpl> root;
  JobConfig config = TwoRanks(Strategy::kFullShard);
  config.world_size = 0;
  EXPECT_THAT(PlanUnits(root, config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world")));
  root.to(torch::kBFloat16);
  EXPECT_THAT(PlanUnits(root, TwoRanks(Strategy::kFullShard)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp32 or fp64")));
}

}  // namespace
}  // namespace tessera
