// SIGKILL of each kind of process in the middle of a run of real processes: the final model is the
// same bytes as that of an undisturbed run, and nothing is leaked.
#include <signal.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::CommandLine;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;

class KillTest : public ProcessCluster {
 protected:
  // A run that cannot end before Resume(), so that what is killed is killed in it.
  void StartHalfRun() {
    pause_at_ = 2 * kSteps / 3;
    StartAll();
  }
};

TEST_F(KillTest, KilledTrainerIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  AwaitStep(1, kSteps / 3);
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  Resume();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(KillTest, KilledExecutorIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  AwaitStep(0, kSteps / 3);
  const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
  ASSERT_EQ(executors.count("toy/2"), 1);
  ASSERT_EQ(kill(executors.at("toy/2"), SIGKILL), 0);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// As one whose driver or file system hangs.
TEST_F(KillTest, ExecutorThatStandsStillIsEndedAndReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  AwaitStep(0, kSteps / 3);
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/2"), SIGSTOP), 0);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  const std::string log = ReadFile(folder_ + "/worker.log");
  EXPECT_TRUE(absl::StrContains(log, "state T (stopped)")) << log;
  EXPECT_TRUE(absl::StrContains(log, "stands still for 5s: it is killed")) << log;
}

TEST_F(KillTest, KilledCoordinatorRestartsWhileStepsGoOnAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  AwaitStep(0, kSteps / 3);
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  Resume();
  StartCoordinator();
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + "/worker.log"), " failed: "))
      << "no step was disturbed";
}

// Two of three ranks announce their first operation, and so wait for a release, while the
// coordinator is away for longer than they wait.
TEST_F(KillTest, CoordinatorAwayWhileTheOrderIsRecordedEndsInANewEpochOnceItIsBack) {
  ASSERT_FALSE(UndisturbedModel().empty());
  collective_timeout_ = absl::Milliseconds(1500);
  StartCoordinator();
  StartWorker();
  const auto worker_logged = [this](const std::string& text) {
    return Eventually([&] { return absl::StrContains(ReadFile(folder_ + "/worker.log"), text); });
  };
  for (int rank : {0, 1}) {
    StartTrainer(rank);
    ASSERT_TRUE(worker_logged(absl::StrCat("rank ", rank, ": trainer attached")));
  }
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  ASSERT_TRUE(worker_logged("finish-initialize: the coordinator did not answer within 1.5s"));
  StartCoordinator();
  ASSERT_TRUE(worker_logged("epoch 2 starts after step 0"));
  StartTrainer(2);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// An executor ends, or is stopped and killed for it, at each point of the step: before and after
// its vote, after the decision, and between the update and its publication. Every rank's executor
// does so at the same step, and each one that replaces it at its own.
class KillPointTest : public KillTest,
                      public testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(KillPointTest, ExecutorKilledThereLeavesTheStepUndoneOrDoneEverywhere) {
  ASSERT_FALSE(UndisturbedModel().empty());
  const auto& [point, action] = GetParam();
  StartAll(absl::StrCat(point, action));
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Points, KillPointTest,
                         testing::Combine(testing::Values("step.before-vote", "step.after-vote",
                                                          "step.after-decision",
                                                          "step.before-publish"),
                                          testing::Values("=kill@11", "=stop@21")));
// Operations and reductions are several in a step.
INSTANTIATE_TEST_SUITE_P(PointsOfUnits, KillPointTest,
                         testing::Values(std::tuple("engine.operation", "=stop@301"),
                                         std::tuple("reduce.started", "=stop@81"),
                                         std::tuple("stream.before-work", "=stop@81"),
                                         std::tuple("stream.after-work", "=stop@81")));

TEST_F(KillTest, NoProcessOrSocketOutlivesTheWorkerHoweverItEnds) {
  for (int signal : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    StartHalfRun();
    AwaitStep(0, 3);
    const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
    EXPECT_EQ(executors.size(), kWorldSize);
    worker_->Kill(signal);
    worker_->Wait();
    Resume();
    for (const auto& [label, pid] : executors) {
      EXPECT_TRUE(Eventually([pid = pid] { return CommandLine(pid).empty(); }))
          << "executor " << label << " is left";
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_EQ(AwaitEnd(rank), 1) << "a trainer whose worker is gone ends with an error";
    }
    if (signal == SIGTERM) {
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/worker.sock"));
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/descriptors.sock"));
    }
    TearDown();
    SetUp();
  }
}

}  // namespace
}  // namespace tessera
