// A worker of a hybrid job dies with its memory: ranks 0 and 1 on "w", 2 and 3 on "x", each pair
// with the whole model. It is rebuilt from the other, and the final model is the same bytes as that
// of an undisturbed run.
#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/fault/hybrid_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;

class ReplicaKillTest : public HybridCluster {
 protected:
  static void Kill(demo::ChildProcess* process) {
    process->Kill(SIGKILL);
    process->Wait();
  }
  void KillTrainers(int first, int last) {
    for (int rank = first; rank <= last; ++rank) Kill(trainers_[rank].get());
  }
  void StartTrainers(int first, int last) {
    for (int rank = first; rank <= last; ++rank) StartTrainer(rank, /*replace=*/true);
  }
  bool AwaitLog(const std::string& file, const std::string& text) {
    return Eventually([&] { return absl::StrContains(ReadFile(folder_ + "/" + file), text); });
  }
};

TEST_F(ReplicaKillTest, RestartedWorkerIsRebuiltAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  Kill(second_worker_.get());
  KillTrainers(2, 3);
  StartSecondWorker();
  StartTrainers(2, 3);
  AwaitStep(2, kSteps / 3 + 1);
  // What it was given is as good as what the other had.
  Kill(worker_.get());
  KillTrainers(0, 1);
  StartWorker();
  StartTrainers(0, 1);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedHybrid());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/second.log"), "rank 3: has its shards"));
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "rank 1: has its shards"));
}

TEST_F(ReplicaKillTest, TrainersOfTheDeadWorkerAreToldAndTheOthersWait) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  Kill(second_worker_.get());
  Resume();
  EXPECT_EQ(AwaitEnd(2), 1);
  EXPECT_EQ(AwaitEnd(3), 1);
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/trainer.log"), "the worker is gone"));
  StartSecondWorker();
  StartTrainers(2, 3);
  EXPECT_EQ(Finish(), UndisturbedHybrid());
}

TEST_F(ReplicaKillTest, SpareWorkerTakesOverAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  worker_timeout_ = absl::Seconds(2);
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  Kill(second_worker_.get());
  KillTrainers(2, 3);
  second_id_ = "y";
  StartSecondWorker();
  StartTrainers(2, 3);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedHybrid());
}

class ReplicaPieceKillTest : public ReplicaKillTest,
                             public testing::WithParamInterface<const char*> {
 protected:
  ReplicaPieceKillTest() {
    // A rebuild of more than one piece.
    trainer_flags_ = {absl::StrCat("--unused-buffer-bytes=", 65 << 20)};
    steps_ = 9;
  }
  // The final model of a run without failures.
  std::string RunUndisturbed() {
    StartBoth();
    std::string model = Finish();
    TearDown();
    SetUp();
    return model;
  }
};

// The worker that is rebuilt has executors that end or stand still between two pieces.
TEST_P(ReplicaPieceKillTest, ProcessThatEndsOrStopsBetweenTwoPiecesDelaysTheRebuild) {
  const std::string undisturbed = RunUndisturbed();
  ASSERT_FALSE(undisturbed.empty());
  pause_at_ = 6;
  StartBoth();
  AwaitStep(0, 3);
  Kill(second_worker_.get());
  KillTrainers(2, 3);
  StartSecondWorker(GetParam());
  // A stopped executor is killed by its worker.
  ASSERT_TRUE(AwaitLog("second.log", "killed by signal 9"));
  Kill(second_worker_.get());
  StartSecondWorker();
  StartTrainers(2, 3);
  Resume();
  EXPECT_TRUE(Finish() == undisturbed) << "of other bytes";
}

INSTANTIATE_TEST_SUITE_P(Points, ReplicaPieceKillTest,
                         testing::Values("rebuild.piece=kill@1", "rebuild.piece=stop@1"));

// What the executors of the worker that is rebuilt do in the first rebuild.
class ReplicaKillPointTest : public ReplicaKillTest,
                             public testing::WithParamInterface<const char*> {};

TEST_P(ReplicaKillPointTest, ProcessThatDiesInARebuildDelaysIt) {
  ASSERT_FALSE(UndisturbedHybrid().empty());
  const std::string faults = GetParam();
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  Kill(second_worker_.get());
  KillTrainers(2, 3);
  StartSecondWorker(faults);
  if (absl::StrContains(faults, "=hold")) {
    ASSERT_TRUE(AwaitLog("worker.log", "epoch 2 starts"));
    ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/0"), SIGKILL), 0);
    ASSERT_TRUE(AwaitLog("worker.log", "epoch 3"));
  } else {
    ASSERT_TRUE(AwaitLog("second.log", "killed by signal 9"));
  }
  Kill(second_worker_.get());
  StartSecondWorker();
  StartTrainers(2, 3);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedHybrid());
}

INSTANTIATE_TEST_SUITE_P(Points, ReplicaKillPointTest,
                         testing::Values("rebuild.before-state=kill@1",
                                         "rebuild.before-state=stop@1",
                                         "rebuild.before-publish=kill@1",
                                         "rebuild.before-publish=stop@1",
                                         "rebuild.before-state=hold@1"));

}  // namespace
}  // namespace tessera
