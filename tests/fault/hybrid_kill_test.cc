// SIGKILL in the middle of a hybrid run: ranks 0 and 1 on "w", 2 and 3 on "x", each pair with the
// whole model. The final model is the same bytes as that of an undisturbed run.
#include <signal.h>

#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/hybrid_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::ReadFile;

using HybridKillTest = HybridCluster;

TEST_F(HybridKillTest, KilledExecutorsAndTrainerAreReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/1"), SIGKILL), 0);
  AwaitStep(0, kSteps / 2);
  ASSERT_EQ(kill(ExecutorsOf(second_worker_->pid()).at("toy/3"), SIGKILL), 0);
  trainers_[2]->Kill(SIGKILL);
  trainers_[2]->Wait();
  Resume();
  StartTrainer(2, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedHybrid());
}

// The executors of one group end at a point of the step, the other's do not.
class HybridKillPointTest : public HybridKillTest,
                            public testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(HybridKillPointTest, StepIsUndoneOrDoneInBothGroups) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  const auto& [faults, on_second] = GetParam();
  StartBoth(on_second ? "" : faults, on_second ? faults : "");
  EXPECT_EQ(Finish(), UndisturbedHybrid());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + (on_second ? "/second.log" : "/worker.log")),
                                "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(
    Points, HybridKillPointTest,
    testing::Combine(testing::Values("initialize.after-barrier=kill@1", "step.before-vote=kill@11",
                                     "step.after-vote=kill@11", "step.before-publish=kill@11"),
                     testing::Bool()));

}  // namespace
}  // namespace tessera
