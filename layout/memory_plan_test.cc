#include "layout/memory_plan.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard};

// Root of 40 elements and blocks of 80, 120 and 160, none of them padded on four ranks.
ModelLayout FourUnits() {
  ModelSpec model;
  for (int64_t numel : {40, 80, 120, 160}) {
    const std::string name = absl::StrCat("u", model.units.size());
    model.units.push_back({name, {MakeSpec(name + ".w", {numel})}});
  }
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  return ModelLayout::Create(model, options, 4).value();
}

MemoryPlan Plan(ShardingStrategy strategy, const MemoryOptions& options) {
  return PlanMemory(FourUnits(), strategy, options).value();
}

TEST(MemoryPlanTest, UnitInTheShardsDTypeNeedsNoCopyAmongUnitsOfLowPrecision) {
  ModelLayout layout = FourUnits();
  layout.units[3].compute_dtype = DType::kFp32;
  MemoryOptions options;
  options.compute_dtype = DType::kBf16;
  options.gradient_slots = 0;
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(layout, ShardingStrategy::kShardGradOp, options));
  EXPECT_EQ(plan.unsharded_parameter_bytes, (40 + 80 + 120) * 2);
  EXPECT_EQ(plan.unsharded_gradient_bytes, (40 + 80 + 120) * 2 + 160 * 4);
}

TEST(MemoryPlanTest, OnOneHostUnshardedParametersAreTheShards) {
  for (ShardingStrategy strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    const MemoryPlan plan = Plan(strategy, MemoryOptions());
    EXPECT_EQ(plan.parameter_bytes, 400);  // 400 elements of 4 bytes over 4 ranks.
    EXPECT_EQ(plan.gradient_bytes, 400);
    EXPECT_EQ(plan.optimizer_bytes, 800);
    EXPECT_EQ(plan.unsharded_parameter_bytes, 0);
    // Gradients of the root and the two largest others.
    EXPECT_EQ(plan.unsharded_gradient_bytes, (40 + 160 + 120) * 4);
    EXPECT_EQ(plan.unsharded_peak_bytes, 1280);
    EXPECT_EQ(plan.rank_total_bytes, 1600 + 1280);
    EXPECT_EQ(plan.host_total_bytes, 4 * (1600 + 1280));
  }
}

TEST(MemoryPlanTest, LowPrecisionNeedsTheGatheredUnitsOnceAHost) {
  MemoryOptions options;
  options.compute_dtype = DType::kBf16;
  const MemoryPlan full = Plan(ShardingStrategy::kFullShard, options);
  EXPECT_EQ(full.unsharded_parameter_bytes, (40 + 160 + 120) * 2);
  EXPECT_EQ(full.unsharded_peak_bytes, 640 + 640 / 4);
  EXPECT_EQ(full.host_total_bytes, 4 * (1600 + 640) + 640);
  const MemoryPlan grad_op = Plan(ShardingStrategy::kShardGradOp, options);
  EXPECT_EQ(grad_op.unsharded_parameter_bytes, 400 * 2);
}

TEST(MemoryPlanTest, SeveralHostsEachHoldACopyOfWhatIsGathered) {
  MemoryOptions options;
  options.ranks_per_host = 2;
  options.max_gathered_units = 1;
  const MemoryPlan plan = Plan(ShardingStrategy::kFullShard, options);
  EXPECT_EQ(plan.unsharded_parameter_bytes, (40 + 160) * 4);
  EXPECT_EQ(plan.unsharded_peak_bytes, 1280 + 400);
  EXPECT_EQ(plan.host_total_bytes, 2 * (1600 + 1280) + 800);
}

TEST(MemoryPlanTest, WithoutShardingEveryRankHoldsEverything) {
  const MemoryPlan plan = Plan(ShardingStrategy::kNoShard, MemoryOptions());
  EXPECT_EQ(plan.parameter_bytes, 1600);
  EXPECT_EQ(plan.gradient_bytes, 1600);
  EXPECT_EQ(plan.optimizer_bytes, 3200);
  EXPECT_EQ(plan.unsharded_peak_bytes, 0);
  EXPECT_EQ(plan.host_total_bytes, 4 * 6400);
  MemoryOptions bf16;
  bf16.compute_dtype = DType::kBf16;
  // A copy of parameters and of gradients, of every rank.
  EXPECT_EQ(Plan(ShardingStrategy::kNoShard, bf16).host_total_bytes, 4 * (6400 + 800 + 800));
}

TEST(MemoryPlanTest, NoGradientSlotsMeansOneOfEveryUnit) {
  MemoryOptions options;
  options.gradient_slots = 0;
  EXPECT_EQ(Plan(ShardingStrategy::kFullShard, options).unsharded_gradient_bytes, 1600);
  options.gradient_slots = 1000;  // More than units.
  EXPECT_EQ(Plan(ShardingStrategy::kFullShard, options).unsharded_gradient_bytes, 1600);
}

TEST(MemoryPlanTest, OptimizerWithoutStateTakesNone) {
  MemoryOptions options;
  options.optimizer_states = 0;
  for (ShardingStrategy strategy : kStrategies) {
    EXPECT_EQ(Plan(strategy, options).optimizer_bytes, 0);
  }
}

TEST(MemoryPlanTest, BytesThatOverflowAreInvalid) {
  ModelSpec model;
  model.units.push_back({"u", {MakeSpec("w", {std::numeric_limits<int64_t>::max() / 4})}});
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, options, 2));
  for (ShardingStrategy strategy : kStrategies) {
    EXPECT_THAT(PlanMemory(layout, strategy, MemoryOptions()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overflows")));
  }
}

TEST(MemoryPlanTest, OptionsOutOfBoundsAreInvalid) {
  const auto expect_refused = [](void (*change)(MemoryOptions*), const char* fragment) {
    MemoryOptions options;
    change(&options);
    EXPECT_THAT(PlanMemory(FourUnits(), ShardingStrategy::kFullShard, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(fragment)));
  };
  expect_refused([](MemoryOptions* o) { o->ranks_per_host = 5; }, "ranks_per_host");
  expect_refused([](MemoryOptions* o) { o->ranks_per_host = -1; }, "ranks_per_host");
  expect_refused([](MemoryOptions* o) { o->optimizer_states = -1; }, "optimizer_states");
  expect_refused([](MemoryOptions* o) { o->max_gathered_units = -1; }, "max_gathered_units");
  expect_refused([](MemoryOptions* o) { o->gradient_slots = -1; }, "gradient_slots");
  expect_refused([](MemoryOptions* o) { o->compute_dtype = DType::kInt32; }, "dtype");
}

}  // namespace
}  // namespace tessera
