// SIGKILL of trainers that have their rank's executor in their process, in runs of real processes:
// it ends both, and the final model is the same bytes as that of an undisturbed run whose executors
// are the worker's.
#include <signal.h>

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;

constexpr char kHosts[] = "--host-executor";

class HostedKillTest : public ProcessCluster {
 protected:
  // `flags`: of rank 1's trainer; the others host.
  void StartRun(const std::vector<std::string>& flags) {
    StartCoordinator();
    StartWorker();
    trainer_flags_ = {kHosts};
    for (const int rank : {0, 2}) StartTrainer(rank);
    trainer_flags_ = flags;
    StartTrainer(1);
  }
  void ReplaceTrainer(const std::vector<std::string>& flags) {
    trainer_flags_ = flags;
    StartTrainer(1, /*replace=*/true);
  }
};

TEST_F(HostedKillTest, UndisturbedRunHasTheSameModelAndNoExecutorOfTheWorkers) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = kSteps / 2;
  StartRun({});
  AwaitStep(0, pause_at_);
  const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
  EXPECT_EQ(executors.size(), 1) << "of rank 1 alone";
  EXPECT_EQ(executors.count("toy/1"), 1);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(HostedKillTest, KilledTrainerIsReplacedByOneThatHostsOrNotAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  for (const bool next_hosts : {false, true}) {
    SCOPED_TRACE(next_hosts);
    pause_at_ = 2 * kSteps / 3;
    StartRun({kHosts});
    AwaitStep(1, kSteps / 3);
    trainers_[1]->Kill(SIGKILL);
    trainers_[1]->Wait();
    EXPECT_TRUE(Eventually([&] { return ExecutorsOf(worker_->pid()).count("toy/1") == 1; }))
        << "the rank has one of the worker's";
    Resume();
    ReplaceTrainer(next_hosts ? std::vector<std::string>{kHosts} : std::vector<std::string>());
    EXPECT_EQ(Finish(), UndisturbedModel());
    TearDown();
    SetUp();
  }
}

TEST_F(HostedKillTest, WorkerThatEndsTakesTheExecutorsAndTheTrainersSaySo) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    pause_at_ = kSteps / 2;
    StartRun({kHosts});
    AwaitStep(0, 3);
    worker_->Kill(signal);
    worker_->Wait();
    Resume();
    for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 1) << rank;
    TearDown();
    SetUp();
  }
}

// Where the executor is in the process of a trainer whose code is at another place meanwhile.
struct KillPoint {
  std::string name, faults;
};

class HostedKillPointTest : public HostedKillTest, public testing::WithParamInterface<KillPoint> {};

TEST_P(HostedKillPointTest, TrainerKilledThereLeavesTheStepUndoneOrDoneEverywhere) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartRun({kHosts, "--fault-points=" + GetParam().faults});
  EXPECT_EQ(AwaitEnd(1), 128 + SIGKILL);
  ReplaceTrainer({kHosts});
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "the trainer of rank 1 died") ||
              absl::StrContains(ReadFile(folder_ + "/worker.log"), "in its trainer's process"));
}

INSTANTIATE_TEST_SUITE_P(
    Points, HostedKillPointTest,
    testing::Values(KillPoint{"AfterInitialValues", "initialize.after-barrier=kill@1"},
                    KillPoint{"BeforeVote", "step.before-vote=kill@11"},
                    KillPoint{"AfterVote", "step.after-vote=kill@11"},
                    KillPoint{"AfterDecision", "step.after-decision=kill@11"},
                    KillPoint{"BeforePublish", "step.before-publish=kill@11"},
                    KillPoint{"InReduction", "reduce.started=kill@33"},
                    KillPoint{"InAnyOperation", "engine.operation=kill@101"},
                    KillPoint{"InTheTrainersOwnCode", "trainer.operation=kill@102"}),
    [](const testing::TestParamInfo<KillPoint>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
