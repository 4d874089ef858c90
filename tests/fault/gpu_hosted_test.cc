// Trainers on a GPU, which is a fake here that processes share, that have their rank's executor in
// their process and end: killed, or by an error of the GPU, which is that of both. The next
// trainers continue with the state on the GPU, to the bits of an undisturbed run. An error that
// training code meets is told to all ranks, whose trainers end with it here.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/demo/child_process.h"
#include "tests/testing/gpu_process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using demo::ChildProcess;
using testing_support::Eventually;
using testing_support::GpuProcessCluster;
using testing_support::ReadFile;

struct Case {
  std::string name, faults;
  bool is_killed = true;  // Else it ends with an error.
  bool offload = false;
};

class GpuHostedTest : public GpuProcessCluster, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/gpu-hosted-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    StartCluster();
  }
  void TearDown() override {
    trainers_.clear();
    std::filesystem::remove_all(folder_);
  }
  std::string LogOf(int rank) const { return absl::StrCat(folder_, "/", rank, ".log"); }
  void StartTrainer(int rank, const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"tests/testing/fake_gpu_trainer",
                                     "--coordinator=" + cluster_->coordinator_address(),
                                     "--worker=" + cluster_->worker_address(),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--save=" + folder_ + "/model",
                                     "--replace"};
    if (GetParam().offload) args.push_back("--cpu-offload");
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = ChildProcess::Start(args, LogOf(rank));
    ASSERT_OK(started);
    trainers_.resize(kWorldSize);
    trainers_[rank] = *std::move(started);
  }
  int AwaitEnd(int rank) {
    EXPECT_TRUE(Eventually([&] {
      (void)trainers_[rank]->ReadLines();
      return !trainers_[rank]->running();
    })) << ReadFile(LogOf(rank));
    return trainers_[rank]->Wait();
  }
  // Those that end with an error are started again, as a job's operator would.
  std::string Finish() {
    EXPECT_TRUE(Eventually([&] {
      int num_done = 0;
      for (int rank = 0; rank < kWorldSize; ++rank) {
        (void)trainers_[rank]->ReadLines();
        if (trainers_[rank]->running()) continue;
        if (trainers_[rank]->Wait() == 0) {
          ++num_done;
        } else {
          StartTrainer(rank, {"--host-executor"});
        }
      }
      return num_done == kWorldSize;
    })) << ReadFile(LogOf(0))
        << ReadFile(LogOf(1));
    return ReadFile(folder_ + "/model");
  }

  std::string folder_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;
};

TEST_P(GpuHostedTest, TrainerThatEndsThereIsReplacedAndTheModelIsBitIdentical) {
  StartTrainer(0, {"--host-executor"});
  StartTrainer(1, {"--host-executor", "--fault-points=" + GetParam().faults});
  if (GetParam().is_killed) {
    EXPECT_EQ(AwaitEnd(1), 128 + SIGKILL);
  } else {
    EXPECT_EQ(AwaitEnd(1), 1) << "its own calls fail, too";
    EXPECT_THAT(ReadFile(LogOf(1)), testing::HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  StartTrainer(1, {"--host-executor"});
  const std::string model = Finish();

  cluster_.reset();
  StartCluster();
  std::filesystem::remove(folder_ + "/model");
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank, {});
  const std::string undisturbed = Finish();
  EXPECT_FALSE(undisturbed.empty());
  EXPECT_TRUE(model == undisturbed);
}

INSTANTIATE_TEST_SUITE_P(
    Points, GpuHostedTest,
    testing::Values(Case{"KilledBeforeVote", "step.before-vote=kill@5"},
                    Case{"KilledAfterDecision", "step.after-decision=kill@5"},
                    Case{"KilledBeforePublish", "step.before-publish=kill@5"},
                    Case{"KilledInReduction", "reduce.started=kill@14"},
                    Case{"KilledAfterDecisionOffloaded", "step.after-decision=kill@5", true, true},
                    Case{"KilledInACopy", "cuda.MemcpyAsync=kill@61"},
                    Case{"KilledInAnyCall", "cuda.call=kill@700"},
                    Case{"GpuFailsForGood", "cuda.call=fail@700", false},
                    Case{"GpuFailsForGoodLater", "cuda.call=fail@801", false},
                    Case{"GpuFailsForGoodOffloaded", "cuda.call=fail@702", false, true}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
