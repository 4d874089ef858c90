// SIGKILL of executors and trainers of jobs on a GPU, which is a fake here that processes share:
// training ends with the bits of an undisturbed run on the host, and no memory on the GPU belongs
// to a killed process.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/demo/child_process.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_process_cluster.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using demo::ChildProcess;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::FakeGpu;
using testing_support::GpuProcessCluster;
using testing_support::JobState;
using testing_support::ReadFile;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

// Whether the state is offloaded.
class GpuKillTest : public GpuProcessCluster, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(State, GpuKillTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Offloaded" : "OnTheGpu";
                         });

TEST_P(GpuKillTest, KilledExecutorsLeaveTheGpusMemoryByteIdenticalAndTheNextOnesGoOnWithIt) {
  StartCluster();
  const SessionOptions options = Options(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(Train(&team, 5));
  const std::map<int, std::string> before = GpuMemory();
  // Of all ranks: parameters; of each, gradients and, unless it is offloaded, the state.
  ASSERT_GE(before.size(), 1u + kWorldSize * (GetParam() ? 1u : 2u));
  for (const auto& [fd, bytes] : before)
    EXPECT_LT(std::count(bytes.begin(), bytes.end(), '\0'), static_cast<int64_t>(bytes.size()));

  const std::map<std::string, int> executors = Executors();
  for (const auto& [label, pid] : executors) ASSERT_EQ(kill(pid, SIGKILL), 0);
  for (const auto& [label, pid] : executors) {
    ASSERT_TRUE(Eventually([&, label = label, pid = pid] {
      const auto now = ExecutorsOf(getpid());
      return now.count(label) > 0 && now.at(label) != pid;
    }));
  }
  EXPECT_TRUE(GpuMemory() == before) << "after the kill";
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  EXPECT_TRUE(GpuMemory() == before) << "after the new executors started";
  ASSERT_OK(Train(&team, kSteps));
  EXPECT_FALSE(GpuMemory() == before) << "training went on in this memory";
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
}

TEST_P(GpuKillTest, ExecutorsKilledAtRandomMomentsChangeNoBit) {
  StartCluster();
  const SessionOptions options = Options(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  constexpr int64_t kLongRun = 60;
  std::atomic<int64_t> done{0};
  std::atomic<bool> over{false};
  std::thread killer([&] {
    std::mt19937 random(5);
    for (int64_t at = 3; at < kLongRun; at += 2 + static_cast<int64_t>(random() % 7)) {
      while (done.load() < at && !over.load()) std::this_thread::yield();
      cluster_->KillExecutorForTest("toy", static_cast<int>(random() % kWorldSize));
    }
  });
  const std::map<std::string, int> first = Executors();
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    for (int64_t step = 1; step <= kLongRun; ++step) {
      RETURN_IF_ERROR(TrainToyOn(session, gpu_.get(), step));
      if (session->rank() == 0) done.store(step);
    }
    return absl::OkStatus();
  }));
  over.store(true);
  killer.join();
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kLongRun));
  for (const auto& [label, pid] : Executors()) EXPECT_NE(pid, first.at(label)) << label;
}

TEST_P(GpuKillTest, KilledTrainerIsReplacedAndTheModelIsBitIdentical) {
  std::string folder = testing::TempDir() + "/gpu-kill-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  StartCluster();
  const auto start = [&](int rank, bool replace, const std::string& model) {
    std::vector<std::string> args = {"tests/testing/fake_gpu_trainer",
                                     "--coordinator=" + cluster_->coordinator_address(),
                                     "--worker=" + cluster_->worker_address(),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--pause-at=8",
                                     "--resume-file=" + folder + "/resume",
                                     "--save=" + model};
    if (GetParam()) args.push_back("--cpu-offload");
    if (replace) args.push_back("--replace");
    auto started = ChildProcess::Start(args, folder + "/trainer.log");
    EXPECT_OK(started);
    return *std::move(started);
  };
  const auto await_end = [&](ChildProcess* trainer) {
    EXPECT_TRUE(Eventually([&] {
      (void)trainer->ReadLines();
      return !trainer->running();
    }));
    EXPECT_EQ(trainer->Wait(), 0) << ReadFile(folder + "/trainer.log");
  };
  std::vector<std::unique_ptr<ChildProcess>> trainers;
  for (int rank = 0; rank < kWorldSize; ++rank)
    trainers.push_back(start(rank, false, folder + "/model"));
  ASSERT_TRUE(Eventually([&] {
    const std::vector<std::string> lines = trainers[1]->ReadLines();
    return std::find(lines.begin(), lines.end(), "step 5") != lines.end();
  }));
  trainers[1]->Kill(SIGKILL);
  trainers[1]->Wait();
  std::ofstream(folder + "/resume").flush();
  trainers[1] = start(1, true, folder + "/model");
  for (const auto& trainer : trainers) await_end(trainer.get());

  cluster_.reset();
  StartCluster();
  for (int rank = 0; rank < kWorldSize; ++rank)
    trainers[rank] = start(rank, false, folder + "/undisturbed");
  for (const auto& trainer : trainers) await_end(trainer.get());
  EXPECT_FALSE(ReadFile(folder + "/undisturbed").empty());
  EXPECT_TRUE(ReadFile(folder + "/model") == ReadFile(folder + "/undisturbed"));
  std::filesystem::remove_all(folder);
}

TEST_P(GpuKillTest, AttachingAndDetachingLeavesNothingOfTheGpuHeld) {
  StartCluster();
  SessionOptions options = Options(GetParam());
  options.wait_if_attached = true;
  const auto cycle = [&] {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(Train(&team, team.session(0)->next_step()));
  };
  const auto descriptors = [] {
    int count = 0;
    for (const auto& [fd, name] : DescriptorsOf(getpid()))
      count += absl::StartsWith(name, "/memfd:") ? 1 : 0;
    return count;
  };
  cycle();
  const std::string held = FakeGpu()->Held();
  const int count = descriptors();
  // A thousand attachments: each cycle has one of each rank.
  for (int i = 0; i < 1000 / kWorldSize && !HasFailure(); ++i) cycle();
  EXPECT_EQ(FakeGpu()->Held(), held);
  EXPECT_TRUE(Eventually([&] { return descriptors() <= count; })) << count << " before";
}

struct KillPoint {
  std::string name, faults;
  bool offload = false, in_backward = false;
};

// Each rank's executor is killed there, and each one that replaces it likewise.
class GpuKillPointTest : public GpuProcessCluster, public testing::WithParamInterface<KillPoint> {};

TEST_P(GpuKillPointTest, ExecutorsKilledThereLeaveTheStepUndoneOrDoneEverywhere) {
  StartCluster(GetParam().faults);
  const SessionOptions options = Options(GetParam().offload, GetParam().in_backward);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::map<std::string, int> first = Executors();
  ASSERT_OK(Train(&team, kSteps));
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
  EXPECT_NE(Executors(), first) << "some were killed";
}

INSTANTIATE_TEST_SUITE_P(
    Points, GpuKillPointTest,
    testing::Values(KillPoint{"BeforeVote", "step.before-vote=kill@5"},
                    KillPoint{"AfterVote", "step.after-vote=kill@5"},
                    KillPoint{"AfterDecision", "step.after-decision=kill@5"},
                    KillPoint{"BeforePublish", "step.before-publish=kill@5"},
                    KillPoint{"InReduction", "reduce.started=kill@14"},
                    KillPoint{"AfterDecisionOffloaded", "step.after-decision=kill@5", true},
                    KillPoint{"BeforePublishOffloaded", "step.before-publish=kill@5", true},
                    KillPoint{"InBackward", "update.in-backward=kill@14", false, true},
                    KillPoint{"InBackwardOffloaded", "update.in-backward=kill@14", true, true},
                    KillPoint{"InACopy", "cuda.MemcpyAsync=kill@31"},
                    KillPoint{"InACopyOffloaded", "cuda.MemcpyAsync=kill@31", true},
                    KillPoint{"InAWait", "cuda.StreamSynchronize=kill@45"},
                    KillPoint{"InAnyCall", "cuda.call=kill@400"},
                    KillPoint{"InAnyCallOffloaded", "cuda.call=kill@402", true}),
    [](const testing::TestParamInfo<KillPoint>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
