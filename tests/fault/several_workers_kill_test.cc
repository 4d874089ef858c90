// SIGKILL in the middle of a run whose ranks are on two workers: ranks 0 and 1 on "w", rank 2 on
// "x". The final model is the same bytes as that of an undisturbed run on one worker, since the sum
// of w's ranks and x's is that of all in rank order.
#include <signal.h>

#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::ReadFile;

class SeveralWorkersKillTest : public ProcessCluster {
 protected:
  SeveralWorkersKillTest() { split_ = true; }

  void StartBoth(const std::string& faults_of_w = "", const std::string& faults_of_x = "") {
    StartCoordinator();
    StartWorker(faults_of_w);
    StartSecondWorker(faults_of_x);
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  }
  // A run that cannot end before Resume(), so that what is killed is killed in it.
  void StartHalfRun() {
    pause_at_ = 2 * kSteps / 3;
    StartBoth();
    AwaitStep(0, kSteps / 3);
  }
};

TEST_F(SeveralWorkersKillTest, UndisturbedRunIsThatOfOneWorker) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartBoth();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(SeveralWorkersKillTest, KilledExecutorOfEitherWorkerIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/1"), SIGKILL), 0);
  AwaitStep(0, kSteps / 2);
  ASSERT_EQ(kill(ExecutorsOf(second_worker_->pid()).at("toy/2"), SIGKILL), 0);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(SeveralWorkersKillTest, KilledTrainerIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  trainers_[2]->Kill(SIGKILL);
  trainers_[2]->Wait();
  Resume();
  StartTrainer(2, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(SeveralWorkersKillTest, KilledCoordinatorRestartsAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  Resume();
  StartCoordinator();
  EXPECT_EQ(Finish(), UndisturbedModel());
  for (const char* log : {"/worker.log", "/second.log"}) {
    EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + log), " failed: ")) << "a step was disturbed";
  }
}

// The executors of one worker end at a point of the step, the other's do not. After the vote the
// other worker decides, and the one whose executors are gone must learn what. So it must after the
// barrier of the first values, which the other worker then has.
class SeveralWorkersKillPointTest
    : public SeveralWorkersKillTest,
      public testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(SeveralWorkersKillPointTest, StepIsUndoneOrDoneOnBothWorkers) {
  ASSERT_FALSE(UndisturbedModel().empty());
  const auto& [faults, on_second] = GetParam();
  StartBoth(on_second ? "" : faults, on_second ? faults : "");
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + (on_second ? "/second.log" : "/worker.log")),
                                "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(
    Points, SeveralWorkersKillPointTest,
    testing::Combine(testing::Values("initialize.after-barrier=kill@1", "step.before-vote=kill@11",
                                     "step.after-vote=kill@11", "step.after-decision=kill@11",
                                     "step.before-publish=kill@11"),
                     testing::Bool()));

TEST_F(SeveralWorkersKillTest, JobIsLostWithTheMemoryOfEitherWorker) {
  StartHalfRun();
  second_worker_->Kill(SIGKILL);
  second_worker_->Wait();
  StartSecondWorker();
  Resume();
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 1) << "rank " << rank;
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/coordinator.log"),
                                "LOST: a part of its shards is gone with a worker's memory (worker "
                                "'x' started again)"));
}

}  // namespace
}  // namespace tessera
