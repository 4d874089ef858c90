// Processes that are killed in the middle of saying, or copying, what the buffers of the next step
// are: every reading has those of exactly its step, and the final model is that of an undisturbed
// run.
#include <signal.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::IsStopped;
using testing_support::LiveReading;
using testing_support::ReadFile;
using testing_support::ReadLive;
using testing_support::ToyBufferAt;
using testing_support::ToyBuffers;

class LiveBuffersKillTest : public ProcessCluster {
 protected:
  void SetUp() override {
    ProcessCluster::SetUp();
    trainer_flags_ = {"--buffers"};
    pause_at_ = kSteps / 2;
  }

  // Whole, or why there is none.
  static void ExpectWhole(const LiveReading& reading) {
    ASSERT_TRUE(reading.ok) << reading.error;
    const std::vector<BufferSpec> specs = ToyBuffers();
    for (size_t i = 0; i < specs.size(); ++i) {
      const BufferSpec& spec = specs[i];
      ASSERT_EQ(reading.values.count(spec.name), 1u);
      const auto& [dtype, bytes] = reading.values.at(spec.name);
      EXPECT_EQ(dtype, Name(spec.dtype));
      EXPECT_TRUE(bytes == ToyBufferAt(static_cast<int>(i), reading.step))
          << spec.name << " at step " << reading.step;
    }
  }
  LiveReading Read(const std::string& name) const {
    return ReadLive(coordinator_address(), "toy", folder_ + "/" + name);
  }

  // Reads until told to stop. What fails, since the job begins or an epoch ends, says so.
  void StartReading() {
    reader_ = std::thread([this] {
      while (!stop_.load()) {
        const LiveReading reading = Read("beside.safetensors");
        if (reading.ok) {
          ExpectWhole(reading);
          ++num_readings_;
        }
      }
    });
  }
  // Some have come, and training continues to its end.
  void ResumeOnceRead() {
    EXPECT_TRUE(Eventually([this] { return num_readings_.load() > 2; }));
    Resume();
  }
  void StopReading() {
    stop_.store(true);
    reader_.join();
  }

  std::atomic<bool> stop_{false};
  std::atomic<int> num_readings_{0};
  std::thread reader_;
};

class BufferKillPointTest : public LiveBuffersKillTest,
                            public ::testing::WithParamInterface<std::string> {};

// Each rank's executor, and each that follows it, ends in the middle of a copy.
TEST_P(BufferKillPointTest, ExecutorKilledThereLeavesEveryReadingWhole) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker(GetParam());
  StartReading();
  for (int rank = 0; rank < world_size_; ++rank) StartTrainer(rank);
  ResumeOnceRead();
  EXPECT_EQ(Finish(), UndisturbedModel());
  StopReading();
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "killed by signal 9"));
  const LiveReading last = Read("last.safetensors");
  EXPECT_EQ(last.step, kSteps);
  ExpectWhole(last);
}

INSTANTIATE_TEST_SUITE_P(Points, BufferKillPointTest,
                         ::testing::Values("buffers.publish=kill@9", "buffers.publish=stop@40",
                                           "step.before-publish=kill@9",
                                           "step.after-decision=kill@9"));

TEST_F(LiveBuffersKillTest, TrainerKilledWhileItWritesThemLeavesThoseOfTheLastStep) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker();
  for (int rank = 1; rank < world_size_; ++rank) StartTrainer(rank);
  trainer_flags_ = {"--buffers", "--fault-points=buffers.write=kill@20"};
  StartTrainer(0);
  EXPECT_NE(AwaitEnd(0), 0);
  Resume();
  const LiveReading between = Read("between.safetensors");
  EXPECT_GT(between.step, 5);
  EXPECT_LT(between.step, kSteps);
  ExpectWhole(between);
  trainer_flags_ = {"--buffers"};
  StartTrainer(0, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
  const LiveReading last = Read("last.safetensors");
  EXPECT_EQ(last.step, kSteps);
  ExpectWhole(last);
}

TEST_F(LiveBuffersKillTest, TrainerStoppedWhileItWritesThemLeavesReadingsWholeAndIsWaitedFor) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker();
  for (int rank = 1; rank < world_size_; ++rank) StartTrainer(rank);
  trainer_flags_ = {"--buffers", "--fault-points=buffers.write=stop@20"};
  StartTrainer(0);
  ASSERT_TRUE(Eventually([&] { return IsStopped(trainers_[0]->pid()); }))
      << "it did not come there";
  const LiveReading between = Read("between.safetensors");
  EXPECT_GT(between.step, 5);
  ExpectWhole(between);
  trainers_[0]->Kill(SIGCONT);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// Both at once: the executor is in the trainer's process.
TEST_F(LiveBuffersKillTest, TrainerKilledWhileItsOwnExecutorCopiesLeavesEveryReadingWhole) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker();
  StartReading();
  for (int rank = 1; rank < world_size_; ++rank) StartTrainer(rank);
  trainer_flags_ = {"--buffers", "--host-executor", "--fault-points=buffers.publish=kill@20"};
  StartTrainer(0);
  EXPECT_NE(AwaitEnd(0), 0);
  trainer_flags_ = {"--buffers"};
  StartTrainer(0, /*replace=*/true);
  ResumeOnceRead();
  EXPECT_EQ(Finish(), UndisturbedModel());
  StopReading();
  const LiveReading last = Read("last.safetensors");
  EXPECT_EQ(last.step, kSteps);
  ExpectWhole(last);
}

}  // namespace
}  // namespace tessera
