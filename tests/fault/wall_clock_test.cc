// The wall clock of all processes is set forth and back by hours while a job trains. Real
// processes.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
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

constexpr int64_t kHour = 3600;

class WallClockTest : public ProcessCluster {
 protected:
  void SetUp() override {
    ASSERT_FALSE(UndisturbedModel().empty());
    ProcessCluster::SetUp();
    worker_timeout_ = absl::Seconds(3);
    clock_ = folder_ + "/clock";
    SetClock(0);
    setenv("TESSERA_WALL_CLOCK", clock_.c_str(), 1);
    setenv("LD_PRELOAD", "tests/fault/wall_clock/preload_wall_clock.so", 1);
  }
  void TearDown() override {
    unsetenv("LD_PRELOAD");
    ProcessCluster::TearDown();
  }
  // Of all processes, those that run and those to come.
  void SetClock(int64_t seconds) {
    const int file = open(clock_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_EQ(pwrite(file, &seconds, sizeof(seconds), 0), sizeof(seconds));
    close(file);
  }

  std::string clock_;
};

TEST_F(WallClockTest, ClockThatIsSetForthAndBackDisturbsNoStep) {
  StartAll();
  int64_t step = 3;
  for (const int64_t seconds : {kHour, -kHour, int64_t{0}, -30 * kHour, 30 * kHour}) {
    AwaitStep(0, step);
    SetClock(seconds);
    step += 4;
  }
  EXPECT_EQ(Finish(), UndisturbedModel());
  const std::string log = ReadFile(folder_ + "/coordinator.log");
  EXPECT_FALSE(absl::StrContains(log, "epoch=2")) << log;
}

TEST_F(WallClockTest, WorkerThatStartsAgainBehindItsFormerTimeIsTaken) {
  keep_memory_ = "30s";
  SetClock(kHour);
  StartAll();
  AwaitStep(0, kSteps / 3);
  SetClock(-kHour);
  worker_->Kill(SIGKILL);
  worker_->Wait();
  StartWorker();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// It is the ticker that notices.
TEST_F(WallClockTest, CoordinatorWhoseClockWasSetBackStillNoticesASilentWorker) {
  pause_at_ = kSteps / 2;
  StartAll();
  AwaitStep(0, kSteps / 3);
  SetClock(-kHour);
  worker_->Kill(SIGSTOP);
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(ReadFile(folder_ + "/coordinator.log"), "worker 'w' does not answer");
  }));
  worker_->Kill(SIGCONT);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(WallClockTest, CoordinatorThatStartsAgainBehindItsFormerTimeGoesOn) {
  SetClock(kHour);
  StartAll();
  AwaitStep(0, kSteps / 3);
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  SetClock(-kHour);
  StartCoordinator();
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
