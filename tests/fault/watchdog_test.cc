// What coordinator and worker tell a service manager that watches them: they serve, they make
// progress, they hang. The test is the manager. One that it ends for its silence is back as after
// any other end, and the final model is the same bytes as that of an undisturbed run.
#include <signal.h>

#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/notify_listener.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing::_;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;

// Of the manager.
constexpr absl::Duration kPatience = absl::Milliseconds(100);

class WatchdogTest : public ProcessCluster {
 protected:
  WatchdogTest() { keep_memory_ = "30s"; }
  void TearDown() override {
    manager_.reset();
    ProcessCluster::TearDown();
  }

  // What is started from now on is watched.
  void BeginToWatch() {
    ASSERT_OK_AND_ASSIGN(manager_, NotifyListener::Start(folder_ + "/notify", kPatience));
  }
  void ExpectWordsOfProgress() {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(manager_->Next(), "WATCHDOG=1");
  }
  // Waits until one that is watched says nothing for far longer than the manager would bear. What
  // is started from now on is not watched.
  void AwaitSilence() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!manager_->Next(10 * kPatience).empty())
      ASSERT_LT(absl::Now(), deadline) << "it goes on";
    manager_.reset();
  }

  std::unique_ptr<NotifyListener> manager_;
};

TEST_F(WatchdogTest, CoordinatorSaysThatItServesAndGoesOnUntilItHangs) {
  ASSERT_FALSE(UndisturbedModel().empty());
  BeginToWatch();
  StartCoordinator("journal.before_append=hold@1");
  ASSERT_EQ(manager_->Next(), "READY=1");
  EXPECT_THAT(GetJob({coordinator_address()}, "toy", absl::Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kNotFound, _));
  ExpectWordsOfProgress();
  StartTrainer(0);  // It creates the job.
  ASSERT_NO_FATAL_FAILURE(AwaitSilence());
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  StartCoordinator();
  StartWorker();
  for (int rank = 1; rank < kWorldSize; ++rank) StartTrainer(rank);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(WatchdogTest, WorkerSaysThatItServesAndGoesOnUntilItHangs) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = 2 * kSteps / 3;
  StartCoordinator();
  BeginToWatch();
  daemon_faults_ = "job.prepare=hold@2";
  StartWorker();
  ASSERT_EQ(manager_->Next(), "READY=1");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/worker.sock"));
  EXPECT_OK(ConnectPacketSocket(folder_ + "/descriptors.sock"));
  ExpectWordsOfProgress();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  AwaitStep(0, kSteps / 3);
  // The next epoch is prepared, and the job's lock is held for good.
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/2"), SIGKILL), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitSilence());
  worker_->Kill(SIGKILL);
  worker_->Wait();
  daemon_faults_.clear();
  StartWorker();
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(
      absl::StrContains(ReadFile(folder_ + "/worker.log"), "taken over from the previous daemon"));
}

TEST_F(WatchdogTest, BothSayThatTheyStop) {
  BeginToWatch();
  StartCoordinator();
  ASSERT_TRUE(manager_->Await("READY=1"));
  coordinator_->Kill(SIGTERM);
  EXPECT_TRUE(manager_->Await("STOPPING=1"));
  EXPECT_EQ(coordinator_->Wait(), 0);
  StartWorker();
  ASSERT_TRUE(manager_->Await("READY=1"));
  worker_->Kill(SIGTERM);
  EXPECT_TRUE(manager_->Await("STOPPING=1"));
  EXPECT_EQ(worker_->Wait(), 0);
}

}  // namespace
}  // namespace tessera
