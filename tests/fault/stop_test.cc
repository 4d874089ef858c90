// Processes are stopped, as by SIGSTOP, at the points where others kill them. What is back is what
// was stopped, or, as under a watchdog, what was started in its place; a vault, which has what no
// other process has, is continued by its daemon. The final model is the same bytes as that of an
// undisturbed run. Executors that are stopped: KillPointTest and its likes.
#include <signal.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::IsStopped;
using testing_support::ReadFile;
using testing_support::VaultOf;

class StopTest : public ProcessCluster {
 protected:
  StopTest() { keep_memory_ = "30s"; }
  void TearDown() override {
    if (const int vault = VaultOf(folder_); vault > 0) kill(vault, SIGKILL);
    ProcessCluster::TearDown();
  }

  static void AwaitStop(int pid) {
    ASSERT_TRUE(Eventually([pid] { return IsStopped(pid); })) << "it did not come there";
  }
  static void End(demo::ChildProcess* process) {
    process->Kill(SIGKILL);
    process->Wait();
  }
  bool AwaitLog(const std::string& file, const std::string& text) {
    return Eventually([&] { return absl::StrContains(ReadFile(folder_ + "/" + file), text); });
  }
  void StartTrainers() {
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  }
};

enum class Back { kContinued, kReplaced };

class StoppedCoordinatorTest : public StopTest,
                               public testing::WithParamInterface<std::tuple<const char*, Back>> {};

TEST_P(StoppedCoordinatorTest, IsBackAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  const auto& [point, back] = GetParam();
  StartCoordinator(point);
  StartWorker();
  StartTrainers();
  ASSERT_NO_FATAL_FAILURE(AwaitStop(coordinator_->pid()));
  if (back == Back::kContinued) {
    coordinator_->Kill(SIGCONT);
  } else {
    End(coordinator_.get());
    StartCoordinator();
  }
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// A worker registers, a job is made, an epoch is prepared and begins, steps are committed.
INSTANTIATE_TEST_SUITE_P(
    Points, StoppedCoordinatorTest,
    testing::Combine(testing::Values("journal.before_append=stop@1", "journal.before_append=stop@2",
                                     "journal.before_append=stop@3", "journal.before_append=stop@4",
                                     "journal.after_append=stop@2", "journal.after_append=stop@4",
                                     "journal.sqlite.append=stop@3",
                                     "journal.sqlite.append=stop@6"),
                     testing::Values(Back::kContinued, Back::kReplaced)));

class StoppedDaemonTest : public StopTest,
                          public testing::WithParamInterface<std::tuple<int, Back>> {};

TEST_P(StoppedDaemonTest, IsBackAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  const auto& [epoch, back] = GetParam();
  pause_at_ = 2 * kSteps / 3;
  daemon_faults_ = absl::StrCat("job.prepare=stop@", epoch);
  StartAll();
  if (epoch == 2) {
    AwaitStep(0, kSteps / 3);
    ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/2"), SIGKILL), 0);
  }
  ASSERT_NO_FATAL_FAILURE(AwaitStop(worker_->pid()));
  if (back == Back::kContinued) {
    worker_->Kill(SIGCONT);
  } else {
    End(worker_.get());
    daemon_faults_.clear();
    StartWorker();
  }
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

INSTANTIATE_TEST_SUITE_P(Epochs, StoppedDaemonTest,
                         testing::Combine(testing::Values(1, 2),
                                          testing::Values(Back::kContinued, Back::kReplaced)));

// At its n-th command.
class StoppedVaultTest : public StopTest, public testing::WithParamInterface<int> {};

TEST_P(StoppedVaultTest, IsContinuedByItsDaemonAndHasTheMemoryForTheNext) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = 2 * kSteps / 3;
  daemon_faults_ = absl::StrCat("vault.command=stop@", GetParam());
  StartAll();
  AwaitStep(0, pause_at_);
  End(worker_.get());
  StartWorker();
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(
      absl::StrContains(ReadFile(folder_ + "/worker.log"), "taken over from the previous daemon"));
  EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "will not outlive"));
}

// It is listed, is told of the worker, of the job and its memory, of executors and trainers.
INSTANTIATE_TEST_SUITE_P(Commands, StoppedVaultTest, testing::Values(1, 2, 3, 5, 8, 12));

TEST_F(StopTest, VaultThatIsStoppedWhileNoDaemonRunsIsContinuedByTheNext) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartAll();
  AwaitStep(0, kSteps / 3);
  End(worker_.get());
  ASSERT_EQ(kill(VaultOf(folder_), SIGSTOP), 0);
  StartWorker();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

class StoppedTrainerTest : public StopTest,
                           public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(StoppedTrainerTest, IsWaitedForAndGoesOnAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker();
  for (const int rank : {0, 2}) StartTrainer(rank);
  trainer_flags_ = GetParam();
  StartTrainer(1);
  ASSERT_NO_FATAL_FAILURE(AwaitStop(trainers_[1]->pid()));
  EXPECT_TRUE(trainers_[0]->running());
  trainers_[1]->Kill(SIGCONT);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// With its executor in its process, which nobody may kill, and without.
INSTANTIATE_TEST_SUITE_P(
    Points, StoppedTrainerTest,
    testing::Values(
        std::vector<std::string>{"--fault-points=trainer.operation=stop@1"},
        std::vector<std::string>{"--fault-points=trainer.operation=stop@102"},
        std::vector<std::string>{"--host-executor",
                                 "--fault-points=initialize.before-barrier=stop@1"},
        std::vector<std::string>{"--host-executor",
                                 "--fault-points=initialize.after-barrier=stop@1"},
        std::vector<std::string>{"--host-executor", "--fault-points=step.before-vote=stop@11"},
        std::vector<std::string>{"--host-executor", "--fault-points=step.after-decision=stop@11"},
        std::vector<std::string>{"--host-executor", "--fault-points=step.before-publish=stop@11"},
        std::vector<std::string>{"--host-executor", "--fault-points=reduce.started=stop@33"}));

}  // namespace
}  // namespace tessera
