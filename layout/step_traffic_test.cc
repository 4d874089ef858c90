#include "layout/step_traffic.h"

#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

// Root of 8 elements, a trained unit of 16, a frozen one of 32; no padding with 4 ranks.
ModelLayout ThreeUnits(Strategy strategy = Strategy::kFullShard, int64_t group_size = 0) {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("head", {8})}});
  model.units.push_back({"trained", {MakeSpec("w", {16})}});
  model.units.push_back({"frozen", {MakeSpec("e", {32})}});
  model.units.back().parameters.front().requires_grad = false;
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  return ModelLayout::Create(model, options, Sharding{4, strategy, group_size}).value();
}

TEST(StepTrafficTest, FullShardGathersEveryUnitButTheRootAgainForBackward) {
  ASSERT_OK_AND_ASSIGN(const StepTraffic full,
                       PlanTraffic(ThreeUnits(), DType::kBf16, DType::kFp32));
  EXPECT_EQ(full.gathered_bytes, (6 + 2 * 12 + 2 * 24) * 2);
  EXPECT_EQ(full.reduced_bytes, (6 + 12) * 4) << "a frozen unit is not reduced";
  ASSERT_OK_AND_ASSIGN(const StepTraffic kept,
                       PlanTraffic(ThreeUnits(Strategy::kShardGradOp), DType::kBf16, DType::kBf16));
  EXPECT_EQ(kept.gathered_bytes, (6 + 12 + 24) * 2);
  EXPECT_EQ(kept.reduced_bytes, (6 + 12) * 2);
}

TEST(StepTrafficTest, UnitWithDTypesOfItsOwnCountsInThose) {
  ModelLayout layout = ThreeUnits(Strategy::kShardGradOp);
  layout.units[1].compute_dtype = DType::kFp32;
  layout.units[0].reduce_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(const StepTraffic traffic, PlanTraffic(layout, DType::kBf16, DType::kFp32));
  EXPECT_EQ(traffic.gathered_bytes, 6 * 2 + 12 * 4 + 24 * 2);
  EXPECT_EQ(traffic.reduced_bytes, 6 * 2 + 12 * 4);
}

TEST(StepTrafficTest, HybridRankReadsItsGroupsSlicesAndTheOtherGroupsSums) {
  ASSERT_OK_AND_ASSIGN(const StepTraffic traffic, PlanTraffic(ThreeUnits(Strategy::kHybridShard, 2),
                                                              DType::kBf16, DType::kBf16));
  EXPECT_EQ(traffic.gathered_bytes, (4 + 2 * 8 + 2 * 16) * 2);
  EXPECT_EQ(traffic.reduced_bytes, (4 + 8) * 2 + (4 + 8) * 4);
  ASSERT_OK_AND_ASSIGN(
      const StepTraffic kept,
      PlanTraffic(ThreeUnits(Strategy::kHybridShardZero2, 2), DType::kBf16, DType::kBf16));
  EXPECT_EQ(kept.gathered_bytes, (4 + 8 + 16) * 2);
  EXPECT_EQ(kept.reduced_bytes, traffic.reduced_bytes);
}

TEST(StepTrafficTest, OfAMixedUnitOnlyTheTrainableParametersAreReduced) {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("w", {60}), MakeSpec("b", {4})}});
  model.units[0].parameters[0].requires_grad = false;
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, options, 4));
  ASSERT_OK_AND_ASSIGN(const StepTraffic traffic, PlanTraffic(layout, DType::kFp32, DType::kFp32));
  EXPECT_EQ(traffic.gathered_bytes, 48 * 4);
  EXPECT_EQ(traffic.reduced_bytes, 3 * 4 * 4) << "the last rank has all of the bias";
}

TEST(StepTrafficTest, OneRankReadsNothingOfOthers) {
  ModelLayout layout = ThreeUnits();
  layout.world_size = 1;
  for (UnitLayout& unit : layout.units) unit.shards = ShardMap::Create(unit.flat, 1).value();
  ASSERT_OK_AND_ASSIGN(const StepTraffic traffic, PlanTraffic(layout, DType::kFp32, DType::kFp32));
  EXPECT_EQ(traffic.gathered_bytes, 0);
  EXPECT_EQ(traffic.reduced_bytes, 0);
}

TEST(StepTrafficTest, OverflowIsRefused) {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("w", {int64_t{1} << 61})}});
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, LayoutOptions(), 8));
  EXPECT_THAT(PlanTraffic(layout, DType::kFp64, DType::kFp64),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("overflows")));
}

}  // namespace
}  // namespace tessera
