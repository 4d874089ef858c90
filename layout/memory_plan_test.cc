#include "layout/memory_plan.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp,
                                    Strategy::kNoShard};

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

MemoryPlan Plan(Strategy strategy, const MemoryOptions& options) {
  return PlanMemory(FourUnits(), strategy, options).value();
}

TEST(MemoryPlanTest, UnitInTheShardsDTypeNeedsNoCopyAmongUnitsOfLowPrecision) {
  ModelLayout layout = FourUnits();
  layout.units[3].compute_dtype = DType::kFp32;
  MemoryOptions options;
  options.compute_dtype = DType::kBf16;
  options.gradient_slots = 0;
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(layout, Strategy::kShardGradOp, options));
  EXPECT_EQ(plan.unsharded_parameter_bytes, (40 + 80 + 120) * 2);
  EXPECT_EQ(plan.unsharded_gradient_bytes, (40 + 80 + 120) * 2 + 160 * 4);
}

TEST(MemoryPlanTest, OnOneHostUnshardedParametersAreTheShards) {
  for (Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
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
  options.max_gathered_units = 1;
  const MemoryPlan full = Plan(Strategy::kFullShard, options);
  EXPECT_EQ(full.unsharded_parameter_bytes, (40 + 160 + 120) * 2);
  EXPECT_EQ(full.unsharded_peak_bytes, 640 + 640 / 4);
  EXPECT_EQ(full.host_total_bytes, 4 * (1600 + 640) + 640);
  const MemoryPlan grad_op = Plan(Strategy::kShardGradOp, options);
  EXPECT_EQ(grad_op.unsharded_parameter_bytes, 400 * 2);
}

TEST(MemoryPlanTest, SeveralHostsEachHoldACopyOfWhatIsGathered) {
  MemoryOptions options;
  options.ranks_per_host = 2;
  options.max_gathered_units = 1;
  const MemoryPlan plan = Plan(Strategy::kFullShard, options);
  EXPECT_EQ(plan.unsharded_parameter_bytes, (40 + 160 + 120) * 4) << "root, in hand, ahead";
  EXPECT_EQ(plan.unsharded_peak_bytes, 1280 + 640);
  EXPECT_EQ(plan.host_total_bytes, 2 * (1600 + 1280) + 1280);
}

TEST(MemoryPlanTest, UnitsAliveAtOnceAreOneInHandAndThoseAheadWithinBothLimits) {
  const auto alive = [](int64_t max_units, int64_t max_bytes) {
    MemoryOptions options;
    options.ranks_per_host = 2;
    options.max_gathered_units = max_units;
    options.max_gathered_bytes = max_bytes;
    const int64_t root = 40 * 4;
    return Plan(Strategy::kFullShard, options).unsharded_parameter_bytes - root;
  };
  const int64_t small = 80 * 4, middle = 120 * 4, large = 160 * 4;
  EXPECT_EQ(alive(0, 0), large);
  EXPECT_EQ(alive(1, 0), large + middle);
  EXPECT_EQ(alive(5, 0), large + middle + small);
  EXPECT_EQ(alive(5, middle + small), large + middle + small);
  EXPECT_EQ(alive(1, middle + small), large + middle);
  EXPECT_EQ(alive(5, middle + small - 1), large + middle);
  EXPECT_EQ(alive(5, middle - 1), middle + small) << "nothing is gathered ahead of the largest";
  EXPECT_EQ(alive(5, 1), large) << "what is asked for is not limited";
}

TEST(MemoryPlanTest, UnitThatStaysCountsAmongThoseAhead) {
  ModelLayout layout = FourUnits();
  layout.units[2].strategy = Strategy::kShardGradOp;
  MemoryOptions options;
  options.ranks_per_host = 2;
  options.max_gathered_units = 2;
  const int64_t resident = (40 + 120) * 4;
  ASSERT_OK_AND_ASSIGN(MemoryPlan plan, PlanMemory(layout, options));
  EXPECT_EQ(plan.unsharded_parameter_bytes, resident + (80 + 160) * 4);
  options.max_gathered_bytes = (120 + 80) * 4 - 1;
  ASSERT_OK_AND_ASSIGN(plan, PlanMemory(layout, options));
  EXPECT_EQ(plan.unsharded_parameter_bytes, resident + 160 * 4);
}

TEST(MemoryPlanTest, WithoutShardingEveryRankHoldsEverything) {
  const MemoryPlan plan = Plan(Strategy::kNoShard, MemoryOptions());
  EXPECT_EQ(plan.parameter_bytes, 1600);
  EXPECT_EQ(plan.gradient_bytes, 1600);
  EXPECT_EQ(plan.optimizer_bytes, 3200);
  EXPECT_EQ(plan.unsharded_peak_bytes, 0);
  EXPECT_EQ(plan.host_total_bytes, 4 * 6400);
  MemoryOptions bf16;
  bf16.compute_dtype = DType::kBf16;
  // A copy of parameters and of gradients, of every rank.
  EXPECT_EQ(Plan(Strategy::kNoShard, bf16).host_total_bytes, 4 * (6400 + 800 + 800));
}

TEST(MemoryPlanTest, HybridGroupHoldsTheModelOnceAndItsShardsAreTheUnshardedParameters) {
  MemoryOptions options;
  options.shard_group_size = 2;
  for (Strategy strategy : {Strategy::kHybridShard, Strategy::kHybridShardZero2}) {
    const MemoryPlan plan = Plan(strategy, options);
    EXPECT_EQ(plan.parameter_bytes, 800);  // 400 elements of 4 bytes over 2 ranks.
    EXPECT_EQ(plan.optimizer_bytes, 1600);
    EXPECT_EQ(plan.unsharded_parameter_bytes, 0);
    EXPECT_EQ(plan.host_total_bytes, 2 * plan.rank_total_bytes);
  }
  EXPECT_EQ(Plan(Strategy::kFullShard, options).parameter_bytes, 400);
}

TEST(MemoryPlanTest, EachUnitCountsByItsOwnStrategy) {
  ModelLayout layout = FourUnits();
  layout.units[1].strategy = Strategy::kShardGradOp;
  layout.units[2].strategy = Strategy::kNoShard;
  MemoryOptions options;
  options.compute_dtype = DType::kBf16;
  options.max_gathered_units = 1;
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(layout, options));
  EXPECT_EQ(plan.parameter_bytes, (10 + 20 + 120 + 40) * 4);
  EXPECT_EQ(plan.unsharded_parameter_bytes, (40 + 80 + 160) * 2 + 4 * 120 * 2);
}

TEST(MemoryPlanTest, NoGradientSlotsMeansOneOfEveryUnit) {
  MemoryOptions options;
  options.gradient_slots = 0;
  EXPECT_EQ(Plan(Strategy::kFullShard, options).unsharded_gradient_bytes, 1600);
  options.gradient_slots = 1000;  // More than units.
  EXPECT_EQ(Plan(Strategy::kFullShard, options).unsharded_gradient_bytes, 1600);
}

TEST(MemoryPlanTest, OptimizerWithoutStateTakesNone) {
  MemoryOptions options;
  options.optimizer_states = 0;
  for (Strategy strategy : kStrategies) {
    EXPECT_EQ(Plan(strategy, options).optimizer_bytes, 0);
  }
}

TEST(MemoryPlanTest, BytesThatOverflowAreInvalid) {
  ModelSpec model;
  model.units.push_back({"u", {MakeSpec("w", {std::numeric_limits<int64_t>::max() / 4})}});
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, options, 2));
  for (Strategy strategy : kStrategies) {
    EXPECT_THAT(PlanMemory(layout, strategy, MemoryOptions()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overflows")));
  }
}

TEST(MemoryPlanTest, OptionsOutOfBoundsAreInvalid) {
  const auto expect_refused = [](void (*change)(MemoryOptions*), const char* fragment) {
    MemoryOptions options;
    change(&options);
    EXPECT_THAT(PlanMemory(FourUnits(), Strategy::kFullShard, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(fragment)));
  };
  expect_refused([](MemoryOptions* o) { o->ranks_per_host = 5; }, "ranks_per_host");
  expect_refused([](MemoryOptions* o) { o->ranks_per_host = -1; }, "ranks_per_host");
  expect_refused([](MemoryOptions* o) { o->optimizer_states = -1; }, "optimizer_states");
  expect_refused([](MemoryOptions* o) { o->max_gathered_units = -1; }, "max_gathered_units");
  expect_refused([](MemoryOptions* o) { o->max_gathered_bytes = -1; }, "max_gathered_bytes");
  expect_refused([](MemoryOptions* o) { o->gradient_slots = -1; }, "gradient_slots");
  expect_refused([](MemoryOptions* o) { o->shard_group_size = 3; }, "shard_group_size 3");
  EXPECT_THAT(PlanMemory(FourUnits(), Strategy::kHybridShard, MemoryOptions()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard_group_size")));
  expect_refused([](MemoryOptions* o) { o->compute_dtype = DType::kInt32; }, "dtype");
}

}  // namespace
}  // namespace tessera
