#include "worker/executor/load/checkpoint_load_plan.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/executor/save/checkpoint_plan.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// AdamW, two units, one weight tied.
class CheckpointLoadPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.optimizer = OptimizerKind::kAdamW;
    ModelSpec model;
    model.units.push_back({"root", {{"a", {2}}, {"tied", {2}, DType::kFp32, true, "a"}}});
    model.units.push_back({"block", {{"b", {3}}, {"c", {4}}}});
    ASSERT_OK_AND_ASSIGN(layout_, ModelLayout::Create(model, LayoutOptions(), 2));
  }
  // The files of a model with these parameters, each with its state.
  void Store(const std::vector<TensorSpec>& parameters) {
    std::vector<TensorSpec> states;
    for (const TensorSpec& spec : parameters) {
      states.push_back({StepTensor(spec.name), {}});
      for (const StateArray moment : MomentsOf(config_.optimizer))
        states.push_back({MomentTensor(spec.name, config_.optimizer, moment), spec.shape});
    }
    model_ = *PlaceTensors(parameters, {});
    optimizer_ = *PlaceTensors(states, {});
  }
  absl::StatusOr<CheckpointLoadPlan> Plan(const LoadRules& rules,
                                          const std::vector<NamedTensorInfo>& buffers = {}) {
    return PlanCheckpointLoad(model_, &optimizer_, buffers, layout_, config_, rules);
  }
  JobConfig config_;
  ModelLayout layout_;
  SafetensorsHeader model_, optimizer_;
};

TEST_F(CheckpointLoadPlanTest, StateIsLeftOutWithItsParameterWhateverItsShape) {
  Store({{"a", {2}}, {"b", {7}}, {"c", {4}}});
  EXPECT_THAT(Plan({true}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'b'")));
  ASSERT_OK_AND_ASSIGN(const CheckpointLoadPlan plan, Plan({true, {{}, {}, {"b"}}}));
  EXPECT_THAT(plan.states, ElementsAre("a", IsEmpty(), "c"));
  EXPECT_THAT(plan.left_out, ElementsAre(false, true, false));
  EXPECT_THAT(plan.model.missing, IsEmpty());
  EXPECT_THAT(plan.model.unexpected, IsEmpty());
}

TEST_F(CheckpointLoadPlanTest, StateOfWhatTheModelLacksMayBeLeftOutToo) {
  Store({{"a", {2}}, {"b", {3}}, {"c", {4}}, {"head.w", {9}}});
  EXPECT_THAT(Plan({true}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("head.w")));
  ASSERT_OK_AND_ASSIGN(const CheckpointLoadPlan plan, Plan({true, {{}, {}, {"head.*"}}}));
  EXPECT_THAT(plan.left_out, ElementsAre(false, false, false)) << "of the model nothing is";
  ASSERT_OK_AND_ASSIGN(const CheckpointLoadPlan loose, Plan({false}));
  EXPECT_THAT(loose.model.unexpected, ElementsAre("head.w", "state.head.w.exp_avg",
                                                  "state.head.w.exp_avg_sq", "state.head.w.step"));
}

TEST_F(CheckpointLoadPlanTest, StateAndBuffersAreRenamedAsParametersAre) {
  Store({{"model.tied", {2}}, {"model.b", {3}}, {"model.see", {4}}});
  const std::vector<TensorSpec> parameters = {
      {"model.tied", {2}}, {"model.b", {3}}, {"model.see", {4}}, {"model.mean", {1}}};
  model_ = *PlaceTensors(parameters, {});
  const LoadRules rules = {true, {{{"model.see", "c"}, {"model.", ""}}, {}, {}}};
  ASSERT_OK_AND_ASSIGN(const CheckpointLoadPlan plan,
                       Plan(rules, {{"mean", {StoredDType::kF32, {1}}}}));
  EXPECT_THAT(plan.states, ElementsAre("model.tied", "model.b", "model.see"));
  EXPECT_THAT(plan.model.tensors,
              ElementsAre(ElementsAre("model.tied"), ElementsAre("model.b", "model.see")));
  ASSERT_EQ(plan.model.buffers.size(), 1);
  EXPECT_EQ(plan.model.buffers[0].wanted.name, "mean");
  EXPECT_EQ(plan.model.buffers[0].tensor, "model.mean");
}

TEST_F(CheckpointLoadPlanTest, StatesOfOneNameAreAnErrorThatNamesBoth) {
  Store({{"a", {2}}, {"b", {3}}, {"c", {4}}, {"model.c", {4}}});
  model_ = *PlaceTensors({{"a", {2}}, {"b", {3}}, {"c", {4}}}, {});
  EXPECT_THAT(Plan({true, {{{"model.", ""}}, {}, {}}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'c' and 'model.c'"), HasSubstr("both 'c'"))));
}

TEST_F(CheckpointLoadPlanTest, StateOfWhichAPartIsMissingIsRefusedByName) {
  Store({{"a", {2}}, {"b", {3}}, {"c", {4}}});
  optimizer_.tensors.erase("state.b.exp_avg_sq");
  EXPECT_THAT(Plan({false}), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("'state.b.exp_avg_sq' is missing")));
  EXPECT_OK(Plan({true, {{}, {}, {"b"}}}));
}

}  // namespace
}  // namespace tessera
