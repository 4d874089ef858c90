#include "client/resize/take_over_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TensorSpec Spec(const std::string& name, std::vector<int64_t> shape, bool requires_grad = true,
                const std::string& shared_with = "") {
  return {name, std::move(shape), DType::kFp32, requires_grad, shared_with};
}

ModelLayout Layout(const std::vector<UnitSpec>& units, int world_size) {
  JobConfig config;
  config.world_size = world_size;
  ModelSpec model;
  model.units = units;
  return *LayOut(model, config);
}

absl::StatusOr<TakeOverPlan> Plan(const std::vector<UnitSpec>& from,
                                  const std::vector<UnitSpec>& to) {
  const ModelLayout old = Layout(from, 2), own = Layout(to, 3);
  return PlanTakeOver({old, OptimizerKind::kAdamW}, {own, OptimizerKind::kAdamW}, Rank(0));
}

TEST(TakeOverPlanTest, RanksTogetherReadEachElementOfEachArrayOnce) {
  const ModelLayout old =
      Layout({{"a", {Spec("w", {5, 3}), Spec("b", {7})}}, {"c", {Spec("v", {11}, false)}}}, 2);
  for (const int world : {1, 3, 8}) {
    const ModelLayout own =
        Layout({{"all", {Spec("v", {11}, false), Spec("b", {7}), Spec("w", {5, 3})}}}, world);
    // By array, then old parameter: how often each element is read.
    std::vector<std::vector<std::vector<int>>> reads(
        3, {std::vector<int>(15), std::vector<int>(7), std::vector<int>(11)});
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_OK_AND_ASSIGN(
          const TakeOverPlan plan,
          PlanTakeOver({old, OptimizerKind::kAdamW}, {own, OptimizerKind::kAdamW}, Rank(rank)));
      EXPECT_EQ(plan.num_old_parameters, 3);
      EXPECT_EQ(plan.old_parameters, std::vector<int>({2, 1, 0}));
      for (const TakeOverSlice& slice : plan.slices) {
        for (const TakenRange& range : slice.ranges) {
          for (int64_t i = 0; i < range.numel; ++i)
            ++reads[static_cast<int>(slice.array)][range.old_parameter][range.begin_elements + i];
          EXPECT_LE(range.slice_begin_elements + range.numel, own.units[0].shards.shard_numel());
        }
      }
    }
    for (int array = 0; array < 3; ++array) {
      for (int parameter = 0; parameter < 3; ++parameter) {
        const int expected = array > 0 && parameter == 2 ? 0 : 1;  // Frozen: it has no moments.
        for (const int count : reads[array][parameter]) EXPECT_EQ(count, expected);
      }
    }
  }
}

TEST(TakeOverPlanTest, WhatDiffersIsNamed) {
  const std::vector<UnitSpec> units = {{"u", {Spec("w", {4}), Spec("b", {2})}}};
  EXPECT_OK(Plan(units, units));
  EXPECT_THAT(Plan(units, {{"u", {Spec("w", {4}), Spec("b", {2}), Spec("more", {1})}}}),
              StatusIs(kInvalid, HasSubstr("lacks parameter 'more'")));
  EXPECT_THAT(Plan(units, {{"u", {Spec("w", {4})}}}),
              StatusIs(kInvalid, HasSubstr("this job lacks parameter 'b'")));
  EXPECT_THAT(Plan(units, {{"u", {Spec("w", {2, 2}), Spec("b", {2})}}}),
              StatusIs(kInvalid, AllOf(HasSubstr("'w' is [4]"), HasSubstr("[2, 2] in this one"))));
  std::vector<UnitSpec> wide = units;
  for (TensorSpec& spec : wide[0].parameters) spec.dtype = DType::kFp64;
  EXPECT_THAT(Plan(units, wide), StatusIs(kInvalid, HasSubstr("'w' is kept in fp32")));
  const ModelLayout layout = Layout(units, 1);
  EXPECT_THAT(PlanTakeOver({layout, OptimizerKind::kSgd}, {layout, OptimizerKind::kAdamW}, Rank(0)),
              StatusIs(kInvalid, AllOf(HasSubstr("'sgd'"), HasSubstr("'adamw'"))));
}

TEST(TakeOverPlanTest, TiedWeightsMatchByAnyOfTheirNames) {
  const std::vector<UnitSpec> head_first = {
      {"u", {Spec("head", {4}), Spec("embedding", {4}, true, "head")}}};
  const std::vector<UnitSpec> embedding_first = {
      {"u", {Spec("embedding", {4}), Spec("head", {4}, true, "embedding")}}};
  const std::vector<UnitSpec> untied = {{"u", {Spec("embedding", {4}), Spec("head", {4})}}};
  ASSERT_OK_AND_ASSIGN(const TakeOverPlan plan, Plan(head_first, embedding_first));
  EXPECT_THAT(plan.old_parameters, SizeIs(1));
  EXPECT_THAT(Plan(untied, head_first), StatusIs(kInvalid, HasSubstr("tied here")));
  EXPECT_THAT(Plan(head_first, untied), StatusIs(kInvalid, HasSubstr("two parameters here")));
}

TEST(TakeOverPlanTest, BuffersAreMatchedByNameAndThoseThatTheOldJobLacksAreReported) {
  const auto layout = [](std::vector<BufferSpec> buffers) {
    ModelSpec model;
    model.units = {{"a", {Spec("w", {5, 3})}}};
    model.buffers = std::move(buffers);
    return *LayOut(model, JobConfig());
  };
  const auto plan = [&](const ModelLayout& from, const ModelLayout& to) {
    return PlanTakeOver({from, OptimizerKind::kSgd}, {to, OptimizerKind::kSgd}, Rank(0));
  };
  const ModelLayout old = layout({{"left", StoredDType::kI64, {}},
                                  {"mean", StoredDType::kF32, {4}},
                                  {"mask", StoredDType::kBool, {2, 2}}});
  const ModelLayout own = layout({{"mask", StoredDType::kBool, {2, 2}},
                                  {"new", StoredDType::kF32, {4}},
                                  {"mean", StoredDType::kF32, {4}}});
  ASSERT_OK_AND_ASSIGN(const TakeOverPlan found, plan(old, own));
  ASSERT_EQ(found.buffers.size(), 2u);
  EXPECT_EQ(found.buffers[0].buffer, 0);
  EXPECT_EQ(found.buffers[0].old_buffer, 2);
  EXPECT_EQ(found.buffers[0].numel, 4);
  EXPECT_EQ(found.buffers[1].buffer, 2);
  EXPECT_EQ(found.buffers[1].old_buffer, 1);
  EXPECT_EQ(found.missing_buffers, std::vector<std::string>({"new"}));
  EXPECT_THAT(plan(old, layout({{"mean", StoredDType::kF64, {4}}})),
              StatusIs(kInvalid, HasSubstr("buffer 'mean' is F32 [4] in the job that is taken")));
  EXPECT_THAT(plan(old, layout({{"mean", StoredDType::kF32, {2, 2}}})),
              StatusIs(kInvalid, HasSubstr("and F32 [2, 2] in this one")));
}

}  // namespace
}  // namespace tessera
