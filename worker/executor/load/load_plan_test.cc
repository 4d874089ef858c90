#include "worker/executor/load/load_plan.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ModelLayout Layout() {
  ModelSpec model;
  model.units.push_back({"root",
                         {{"a", {2, 3}, DType::kFp32},
                          {"b", {5}, DType::kFp32},
                          {"tied", {2, 3}, DType::kFp32, true, "a"}}});
  model.units.push_back({"block", {{"c", {}, DType::kFp64}}});
  return *ModelLayout::Create(model, LayoutOptions(), 2);
}

TensorTable Stored(const std::vector<TensorSpec>& tensors) {
  return TableOf(*PlaceTensors(tensors, {}));
}

TEST(LoadPlanTest, EachParameterTakesTheTensorOfItsName) {
  ASSERT_OK_AND_ASSIGN(
      const LoadPlan plan,
      PlanLoad(
          Stored({{"c", {}, DType::kBf16}, {"b", {5}, DType::kFp64}, {"a", {2, 3}, DType::kFp32}}),
          Layout(), {/*strict=*/true}));
  EXPECT_THAT(plan.tensors, ElementsAre(ElementsAre("a", "b"), ElementsAre("c")));
  EXPECT_THAT(plan.missing, IsEmpty());
  EXPECT_THAT(plan.unexpected, IsEmpty());
}

TEST(LoadPlanTest, TiedWeightsMayBeWrittenUnderEitherNameOrBoth) {
  const TensorSpec a = {"a", {2, 3}, DType::kFp32}, tied = {"tied", {2, 3}, DType::kFp32};
  const TensorSpec b = {"b", {5}, DType::kFp32}, c = {"c", {}, DType::kFp64};
  ASSERT_OK_AND_ASSIGN(const LoadPlan both, PlanLoad(Stored({a, b, c, tied}), Layout(), {true}));
  EXPECT_EQ(both.tensors[0][0], "a");
  ASSERT_OK_AND_ASSIGN(const LoadPlan other, PlanLoad(Stored({b, c, tied}), Layout(), {true}));
  EXPECT_EQ(other.tensors[0][0], "tied");
}

TEST(LoadPlanTest, WhatIsMissingAndUnexpectedIsAnErrorOrReported) {
  const TensorTable stored =
      Stored({{"a", {2, 3}, DType::kFp32}, {"d", {7}, DType::kFp32}, {"n", {1}, DType::kInt64}});
  EXPECT_THAT(
      PlanLoad(stored, Layout(), {true}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("it lacks 'b', 'c'"), HasSubstr("the model lacks 'd', 'n'"))));
  ASSERT_OK_AND_ASSIGN(const LoadPlan plan, PlanLoad(stored, Layout(), {false}));
  EXPECT_THAT(plan.missing, ElementsAre("b", "c"));
  EXPECT_THAT(plan.unexpected, ElementsAre("d", "n"));
  EXPECT_THAT(plan.tensors[1], ElementsAre(IsEmpty()));
}

TEST(LoadPlanTest, ManyNamesAreCutShortInTheErrorOnly) {
  std::vector<TensorSpec> tensors = {{"a", {2, 3}}, {"b", {5}}, {"c", {}}};
  for (int i = 10; i < 40; ++i) tensors.push_back({absl::StrCat("x", i), {1}});
  EXPECT_THAT(PlanLoad(Stored(tensors), Layout(), {true}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'x21' and 18 more"), Not(HasSubstr("x22")))));
  ASSERT_OK_AND_ASSIGN(const LoadPlan plan, PlanLoad(Stored(tensors), Layout(), {false}));
  EXPECT_EQ(plan.unexpected.size(), 30);
}

TEST(LoadPlanTest, AnotherShapeAndIntegersAreRefusedWhetherStrictOrNot) {
  for (const bool strict : {true, false}) {
    EXPECT_THAT(PlanLoad(Stored({{"a", {3, 2}, DType::kFp32}}), Layout(), {strict}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("tensor 'a' is [3, 2], parameter 'a' is [2, 3]")));
    EXPECT_THAT(PlanLoad(Stored({{"b", {5}, DType::kInt32}}), Layout(), {strict}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("tensor 'b' is I32, parameter 'b' is fp32")));
    EXPECT_THAT(PlanLoad({{"b", {StoredDType::kF8E4M3, {5}}}}, Layout(), {strict}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("tensor 'b' is F8_E4M3, parameter 'b' is fp32")));
    EXPECT_THAT(PlanLoad(Stored({{"tied", {6}, DType::kFp32}}), Layout(), {strict}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor 'tied' is [6]")));
  }
}

TEST(LoadPlanTest, WhatIsLeftOutIsNeitherMissingNorUnexpectedNorChecked) {
  const TensorTable stored =
      Stored({{"a", {2, 3}, DType::kFp32}, {"c", {4, 4}, DType::kInt64}, {"optimizer.x", {1}}});
  LoadRules rules = {/*strict=*/true};
  rules.names.exclude = {"b", "c", "optimizer.*"};
  ASSERT_OK_AND_ASSIGN(const LoadPlan plan, PlanLoad(stored, Layout(), rules));
  EXPECT_THAT(plan.tensors, ElementsAre(ElementsAre("a", IsEmpty()), ElementsAre(IsEmpty())));
  EXPECT_THAT(plan.missing, IsEmpty());
  EXPECT_THAT(plan.unexpected, IsEmpty());
  EXPECT_THAT(plan.left_out, ElementsAre("b", "c"));
  rules.names = {{}, {"a"}, {}};
  ASSERT_OK_AND_ASSIGN(const LoadPlan included, PlanLoad(stored, Layout(), rules));
  EXPECT_EQ(included.tensors, plan.tensors);
  EXPECT_THAT(included.left_out, ElementsAre("b", "c"));
}

TEST(LoadPlanTest, TiedWeightIsIncludedOrExcludedUnderEitherName) {
  const TensorTable stored = Stored({{"tied", {2, 3}, DType::kFp32}});
  ASSERT_OK_AND_ASSIGN(const LoadPlan included,
                       PlanLoad(stored, Layout(), {true, {{}, {"tied"}, {}}}));
  EXPECT_EQ(included.tensors[0][0], "tied");
  ASSERT_OK_AND_ASSIGN(const LoadPlan excluded,
                       PlanLoad(stored, Layout(), {true, {{}, {"a"}, {"tied"}}}));
  EXPECT_THAT(excluded.left_out, ElementsAre("a", "b", "c"));
  EXPECT_THAT(excluded.unexpected, IsEmpty());
}

TEST(LoadPlanTest, PatternThatIncludesNoParameterIsRefusedByItself) {
  EXPECT_THAT(PlanLoad(Stored({{"a", {2, 3}}}), Layout(), {false, {{}, {"a", "blokc.*"}, {}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'blokc.*'")));
}

TEST(LoadPlanTest, RenamedTensorsAreFoundAndReportedAsTheFileCallsThem) {
  const TensorTable stored = Stored({{"model.a", {2, 3}, DType::kFp32},
                                     {"model.bias", {5}, DType::kFp32},
                                     {"model.c", {}, DType::kFp32},
                                     {"model.d", {1}, DType::kFp32}});
  LoadRules rules = {/*strict=*/false};
  rules.names.renames = {{"model.bias", "b"}, {"model.", ""}};
  ASSERT_OK_AND_ASSIGN(const LoadPlan plan, PlanLoad(stored, Layout(), rules));
  EXPECT_THAT(plan.tensors,
              ElementsAre(ElementsAre("model.a", "model.bias"), ElementsAre("model.c")));
  EXPECT_THAT(plan.missing, IsEmpty());
  EXPECT_THAT(plan.unexpected, ElementsAre("model.d"));
  rules.names.renames[1].to = "b";
  rules.names.renames[1].from = "model.c";
  EXPECT_THAT(PlanLoad(stored, Layout(), rules),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'model.bias' and 'model.c' are both 'b' in the model")));
}

TEST(LoadPlanTest, FirstValuesOfAJobMustBeAll) {
  const TensorTable stored =
      Stored({{"a", {2, 3}, DType::kFp32}, {"b", {5}, DType::kFp32}, {"c", {}, DType::kFp64}});
  ASSERT_OK_AND_ASSIGN(const LoadPlan all, PlanLoad(stored, Layout(), {true, {{}, {}, {"d"}}}));
  EXPECT_OK(CheckGivesAll(all));
  ASSERT_OK_AND_ASSIGN(const LoadPlan some, PlanLoad(stored, Layout(), {true, {{}, {}, {"b"}}}));
  EXPECT_THAT(CheckGivesAll(some), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("these are left out: 'b'")));
}

}  // namespace
}  // namespace tessera
