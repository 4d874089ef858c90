// A worker's daemon is killed, or stopped, while its job trains, and the next one continues with
// the job's memory: the trainers live on, and the final model is the same bytes as that of an
// undisturbed run. Real processes.
#include <signal.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ReadFile;

class DaemonKillTest : public ProcessCluster {
 protected:
  DaemonKillTest() { keep_memory_ = "30s"; }

  void End(std::unique_ptr<demo::ChildProcess>* daemon, int signal) {
    (*daemon)->Kill(signal);
    (*daemon)->Wait();
  }
  bool AwaitLog(const std::string& file, const std::string& text) {
    return Eventually([&] { return absl::StrContains(ReadFile(folder_ + "/" + file), text); });
  }
  static int Count(const std::string& text, const std::string& what) {
    int count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++count;
    return count;
  }
};

class EndedDaemonTest : public DaemonKillTest, public testing::WithParamInterface<int> {};

TEST_P(EndedDaemonTest, IsReplacedAgainAndAgainAndNoTrainerEnds) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartAll();
  int num_daemons = 0;
  // Well before the end: a rank that has saved the model leaves, and is missed by one that has to
  // repeat the save.
  for (int64_t step = 3; step + 6 < kSteps; step += 5) {
    AwaitStep(0, step);
    End(&worker_, GetParam());
    StartWorker();
    // Before it is ended, too.
    ++num_daemons;
    ASSERT_TRUE(Eventually([&] {
      const std::string log = ReadFile(folder_ + "/worker.log");
      return Count(log, "taken over from the previous daemon") == num_daemons;
    }));
  }
  EXPECT_EQ(num_daemons, 5);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

INSTANTIATE_TEST_SUITE_P(Signals, EndedDaemonTest, testing::Values(SIGKILL, SIGTERM));

TEST_F(DaemonKillTest, DaemonsOfAJobOnTwoWorkersAreReplaced) {
  ASSERT_FALSE(UndisturbedModel().empty());
  split_ = true;
  StartCoordinator();
  StartWorker();
  StartSecondWorker();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  AwaitStep(0, kSteps / 3);
  End(&second_worker_, SIGKILL);
  StartSecondWorker();
  AwaitStep(0, kSteps / 3 + 3);
  End(&second_worker_, SIGKILL);
  End(&worker_, SIGKILL);
  StartWorker();
  StartSecondWorker();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(DaemonKillTest, CoordinatorThatDiesWithItDoesNoHarm) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartAll();
  AwaitStep(0, kSteps / 3);
  End(&worker_, SIGKILL);
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  StartWorker();
  StartCoordinator();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(DaemonKillTest, TrainerThatDiesMeanwhileIsReplacedToo) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartAll();
  AwaitStep(0, kSteps / 3);
  End(&worker_, SIGKILL);
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  StartWorker();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(DaemonKillTest, RankOfATrainerThatLivesIsKeptForIt) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = kSteps / 2;
  StartAll();
  for (int rank = 0; rank < world_size_; ++rank) AwaitStep(rank, pause_at_);
  // They compute, and see nothing of the daemon, while another trainer waits for a rank.
  std::unique_ptr<demo::ChildProcess> first = std::move(trainers_[1]);
  StartTrainer(1, /*replace=*/true);
  std::unique_ptr<demo::ChildProcess> spare = std::move(trainers_[1]);
  trainers_[1] = std::move(first);
  End(&worker_, SIGKILL);
  StartWorker();
  ASSERT_TRUE(AwaitLog("worker.log", "epoch 2 starts"));
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  spare->Kill(SIGKILL);
}

TEST_F(DaemonKillTest, MemoryOfAnotherWorkerIsNotTakenOver) {
  pause_at_ = kSteps / 2;
  StartAll();
  AwaitStep(0, kSteps / 3);
  End(&worker_, SIGKILL);
  auto other = demo::ChildProcess::Start(
      {"worker/tessera-worker", "--coordinator=" + coordinator_address(), "--worker-id=v",
       "--socket-dir=" + folder_, "--executor-binary=worker/tessera-executor"},
      folder_ + "/other.log");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->Wait(), 1);
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/other.log"), "is worker 'w's"));
  StartWorker();
  EXPECT_TRUE(AwaitLog("worker.log", "taken over from the previous daemon"));
  Resume();
  (void)Finish();
}

TEST_F(DaemonKillTest, WithoutAVaultTheTrainersAreTold) {
  keep_memory_ = "0";
  StartAll();
  AwaitStep(0, kSteps / 3);
  End(&worker_, SIGKILL);
  for (int rank = 0; rank < world_size_; ++rank) EXPECT_EQ(AwaitEnd(rank), 1);
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/trainer.log"), "the worker is gone"));
}

}  // namespace
}  // namespace tessera
