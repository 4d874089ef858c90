// SIGKILL of trainers that have their rank's executor and everything that the rank has on its GPU
// in their process, since the fake's driver passes no memory between processes. The worker has the
// state: the next trainer continues from the last decided step, to the bits of an undisturbed run
// on the host.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/demo/child_process.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using demo::ChildProcess;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::FakeGpuMemoryInProcess;
using testing_support::ReadFile;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;
constexpr int64_t kSteps = 12;

struct Case {
  std::string name, faults;
  int64_t next_step = 0;  // Of the one that follows; 0: it depends.
  bool both = false;      // Trainers are killed, each at that point.
  bool is_killed = true;  // Else it ends with an error.
};

class GpuInProcessKillTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/gpu-in-process-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    LocalCluster::Options options;
    options.num_workers = kWorldSize;
    options.device_memory = FakeGpuMemoryInProcess();
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    trainers_.resize(kWorldSize);
  }
  void TearDown() override {
    trainers_.clear();
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string LogOf(int rank) const { return absl::StrCat(folder_, "/", rank, ".log"); }
  void StartTrainer(int rank, const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"tests/testing/fake_gpu_trainer",
                                     "--coordinator=" + cluster_->coordinator_address(),
                                     "--worker=" + cluster_->worker_address(rank),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--save=" + folder_ + "/model",
                                     "--replace"};
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = ChildProcess::Start(args, LogOf(rank));
    ASSERT_OK(started);
    trainers_[rank] = *std::move(started);
  }
  int AwaitEnd(int rank) {
    EXPECT_TRUE(Eventually([&] {
      (void)trainers_[rank]->ReadLines();
      return !trainers_[rank]->running();
    })) << ReadFile(LogOf(rank));
    return trainers_[rank]->Wait();
  }
  std::string AwaitFirstLine(int rank) {
    std::string first;
    EXPECT_TRUE(Eventually([&] {
      const std::vector<std::string> lines = trainers_[rank]->ReadLines();
      if (!lines.empty()) first = lines.front();
      return !first.empty();
    })) << ReadFile(LogOf(rank));
    return first;
  }
  // Those that end before they are through are started again, as a job's operator would.
  std::string Finish() {
    EXPECT_TRUE(Eventually([&] {
      int num_done = 0;
      for (int rank = 0; rank < kWorldSize; ++rank) {
        (void)trainers_[rank]->ReadLines();
        if (trainers_[rank]->running()) continue;
        const int ended = trainers_[rank]->Wait();
        num_done += ended == 0;
        num_killed_ += ended == 128 + SIGKILL;
        if (ended != 0) StartTrainer(rank, {"--host-executor"});
      }
      return num_done == kWorldSize;
    })) << ReadFile(LogOf(0))
        << ReadFile(LogOf(1));
    return ReadFile(folder_ + "/model");
  }
  // What nobody disturbs, on workers without a GPU.
  std::string OnTheProcessor() const {
    LocalCluster::Options options;
    options.num_workers = kWorldSize;
    auto cluster = LocalCluster::Start(options);
    EXPECT_OK(cluster);
    SessionOptions job = ToyOptions(**cluster, "toy", kWorldSize);
    job.config = JobConfig();  // As the trainers have it.
    job.config.world_size = kWorldSize;
    job.config.max_gradient_norm = 1.0;
    auto team =
        TrainerTeam::Open(job, {(*cluster)->worker_address(0), (*cluster)->worker_address(1)});
    EXPECT_OK(team);
    EXPECT_OK(team->TrainTo(kSteps));
    const std::string path = folder_ + "/undisturbed";
    EXPECT_OK(team->RunAll([&](Session* session) { return session->Save(path); }));
    return ReadFile(path);
  }

  std::string folder_;
  int num_killed_ = 0;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;
};

TEST_P(GpuInProcessKillTest, NextTrainerGoesOnFromTheLastStepAndTheModelIsBitIdentical) {
  const Case& test = GetParam();
  const std::vector<std::string> hosts = {"--host-executor"};
  const std::vector<std::string> ends = {"--host-executor", "--fault-points=" + test.faults};
  StartTrainer(0, test.both ? ends : hosts);
  StartTrainer(1, ends);
  // Where both are killed, one may wait for the other's successor before it comes so far.
  if (!test.both) {
    EXPECT_EQ(AwaitEnd(1), test.is_killed ? 128 + SIGKILL : 1) << ReadFile(LogOf(1));
  }
  if (test.next_step != 0) {
    // A trainer that does not host is refused, and leaves the rank to one that does.
    StartTrainer(1, {});
    EXPECT_EQ(AwaitEnd(1), 1);
    EXPECT_THAT(ReadFile(LogOf(1)), HasSubstr("FAILED_PRECONDITION: rank 1 of job 'toy' needs"));
    StartTrainer(1, hosts);
    EXPECT_EQ(AwaitFirstLine(1), absl::StrCat("step ", test.next_step));
  }
  const std::string model = Finish();
  EXPECT_FALSE(model.empty());
  if (test.both) {
    EXPECT_EQ(num_killed_, kWorldSize);
  }
  EXPECT_TRUE(model == OnTheProcessor());
}

INSTANTIATE_TEST_SUITE_P(
    Points, GpuInProcessKillTest,
    testing::Values(Case{"WhileItAttaches", "cuda.MemAlloc=kill@2"},
                    Case{"BeforeFirstValuesAreAgreed", "initialize.before-barrier=kill@1", 1},
                    Case{"BeforeVote", "step.before-vote=kill@5", 5},
                    Case{"AfterVote", "step.after-vote=kill@5"},
                    Case{"AfterDecision", "step.after-decision=kill@5", 6},
                    Case{"BeforePublish", "step.before-publish=kill@5", 6},
                    Case{"InReduction", "reduce.started=kill@14", 5},
                    Case{"InACopy", "cuda.MemcpyAsync=kill@61"},
                    Case{"InAnyCall", "cuda.call=kill@700"},
                    Case{"BothBeforeVote", "step.before-vote=kill@5", 0, /*both=*/true},
                    Case{"BothAfterDecision", "step.after-decision=kill@5", 0, true},
                    Case{"BothBeforePublish", "step.before-publish=kill@5", 0, true},
                    Case{"GpuFailsForGood", "cuda.call=fail@700", 0, false, /*is_killed=*/false}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
