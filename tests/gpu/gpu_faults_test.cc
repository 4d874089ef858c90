// Faults of processes and of the GPU in jobs on it: its memory stays as it is, to the checksum, and
// training continues to the bits of a job on the host. Over the fake GPU everywhere, and
// over the machine's own where it has one.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/demo/child_process.h"
#include "tests/gpu/fault_device.h"
#include "tests/gpu/fault_programs.h"
#include "tests/gpu/watched_memory.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/cuda/mps.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using demo::ChildProcess;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::GpuUnderTest;
using testing_support::ReadAllFrom;
using testing_support::ReadFile;
using testing_support::ToyOptions;
using testing_support::ToyStepOn;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

constexpr int kWorldSize = 2;
constexpr int64_t kSteps = 12;

class GpuFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<GpuUnderTest> gpu = testing_support::FindGpuUnderTest();
    if (absl::IsNotFound(gpu.status()) || absl::IsUnimplemented(gpu.status()))
      GTEST_SKIP() << gpu.status().message();
    ASSERT_OK(gpu);
    gpu_ = *std::move(gpu);
    if (gpu_.in_process())
      GTEST_SKIP() << "no executor is a process here: " << gpu_.memory->why_not_shared();
    ASSERT_OK_AND_ASSIGN(device_, gpu_.make_device(0));
    folder_ = testing::TempDir() + "/gpu-faults-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    trigger_ = folder_ + "/break";
    script_ = folder_ + "/executor";
    std::ofstream script(script_);
    script << "#!/bin/sh\nexec '" << OwnProgram() << "' --as-executor '" << trigger_
           << "' \"$@\"\n";
    script.close();
    ASSERT_EQ(chmod(script_.c_str(), 0755), 0);
  }
  void TearDown() override {
    cluster_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  static std::string OwnProgram() {
    return std::filesystem::read_symlink("/proc/self/exe").string();
  }
  // `faults`: of each executor, see base/fault_point.h.
  void StartCluster(const std::string& faults = "") {
    memory_ = std::make_shared<WatchedMemory>(gpu_.memory);
    LocalCluster::Options options;
    options.num_devices = kWorldSize;
    options.executor_binary = script_;
    if (!faults.empty()) options.executor_flags = {"--fault-points=" + faults};
    options.device_memory = memory_;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = gpu_.make_device;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions Job(const LocalCluster& cluster) const {
    SessionOptions options = ToyOptions(cluster, "toy", kWorldSize);
    options.config.max_gradient_norm = 0.5;
    options.make_device = gpu_.make_device;
    return options;
  }
  static absl::Status Train(TrainerTeam* team, RankDevice* device, int64_t last_step) {
    return team->RunAll([&](Session* session) { return TrainToyOn(session, device, last_step); });
  }
  // What the trainers of a team see, however many failures a rank meets.
  static absl::StatusOr<std::vector<float>> Values(TrainerTeam* team, RankDevice* device) {
    std::vector<std::vector<float>> values(kWorldSize);
    RETURN_IF_ERROR(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(values[session->rank()], ReadAllFrom(session, device));
      return absl::OkStatus();
    }));
    EXPECT_EQ(values.front(), values.back());
    return values.front();
  }
  // Of a job on the host.
  absl::StatusOr<std::vector<float>> Expected() {
    LocalCluster::Options options;
    options.num_devices = kWorldSize;
    ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(options));
    ASSIGN_OR_RETURN(const auto on_host, gpu_.make_device(kHostDevice));
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(Job(*cluster)));
    RETURN_IF_ERROR(Train(&team, on_host.get(), kSteps));
    return Values(&team, on_host.get());
  }
  WatchedMemory::Checksums All() {
    auto sums = memory_->All(device_.get());
    EXPECT_OK(sums);
    return sums.value_or(WatchedMemory::Checksums());
  }
  WatchedMemory::Checksums States(int64_t step) {
    auto sums = memory_->States(device_.get(), step);
    EXPECT_OK(sums);
    EXPECT_EQ(sums->size(), 3 * kWorldSize);
    return sums.value_or(WatchedMemory::Checksums());
  }
  // Once there is one of each rank.
  static std::map<std::string, int> Executors() {
    std::map<std::string, int> executors;
    EXPECT_TRUE(Eventually([&] {
      executors = ExecutorsOf(getpid());
      return executors.size() == kWorldSize;
    }));
    return executors;
  }
  std::unique_ptr<ChildProcess> StartTrainer(int rank, bool replaces, const std::string& model) {
    std::vector<std::string> args = {OwnProgram(),
                                     "--as-trainer",
                                     "--coordinator=" + cluster_->coordinator_address(),
                                     "--worker=" + cluster_->worker_address(),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--pause-at=8",
                                     "--resume=" + folder_ + "/resume",
                                     "--save=" + folder_ + "/" + model};
    if (replaces) args.push_back("--replace");
    auto started = ChildProcess::Start(args, folder_ + "/trainer.log");
    EXPECT_OK(started);
    return *std::move(started);
  }
  bool Pauses(ChildProcess* trainer) const {
    return Eventually([&] {
             const std::vector<std::string> lines = trainer->ReadLines();
             return std::find(lines.begin(), lines.end(), "at step 8") != lines.end();
           }) ||
           (ADD_FAILURE() << ReadFile(folder_ + "/trainer.log"), false);
  }
  void ExpectEndsWell(ChildProcess* trainer) const {
    EXPECT_EQ(trainer->Wait(), 0) << ReadFile(folder_ + "/trainer.log");
  }

  GpuUnderTest gpu_;
  std::unique_ptr<RankDevice> device_;
  std::string folder_, trigger_, script_;
  std::shared_ptr<WatchedMemory> memory_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(GpuFaultsTest, IllegalAddressInAnExecutorLeavesTheShardsAndTrainingGoesOn) {
  const char* const pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
  const MpsFinding mps = JudgeMps(ProbeMps(pipe == nullptr ? kDefaultMpsFolder : pipe));
  // Where one may be, others' processes would end with it, and this one.
  if (mps.verdict != Mps::kNotRunning)
    GTEST_SKIP() << "MPS ends all of its clients for a fault of one: " << mps.reason;
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  StartCluster();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Job(*cluster_)));
  ASSERT_OK(Train(&team, device_.get(), 5));
  const WatchedMemory::Checksums before = States(5);
  const std::map<std::string, int> executors = Executors();
  // A rank that has done nothing of the step would wait for the next epoch.
  ASSERT_OK(team.RunAll([](Session* session) { return session->DropGradients(); }));
  ASSERT_TRUE(std::ofstream(trigger_).flush());
  // The reduction is before the vote, so no rank takes the step.
  for (const absl::Status& status :
       team.Run([&](Session* session) { return ToyStepOn(session, device_.get(), 6); })) {
    EXPECT_THAT(status, StatusIs(StatusCode::kAborted, testing::_));
  }
  EXPECT_FALSE(std::filesystem::exists(trigger_)) << "no executor met it";
  EXPECT_EQ(States(5), before) << "after the error";
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  EXPECT_EQ(States(5), before) << "after the new executor started";
  EXPECT_NE(Executors(), executors) << "the broken one is gone";
  ASSERT_OK(Train(&team, device_.get(), kSteps));
  EXPECT_NE(States(5), before) << "training went on in this memory";
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Values(&team, device_.get()));
  EXPECT_EQ(values, expected);
}

TEST_F(GpuFaultsTest, KilledExecutorsLeaveAllThatLiesOnTheGpu) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  StartCluster();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Job(*cluster_)));
  ASSERT_OK(Train(&team, device_.get(), 5));
  const WatchedMemory::Checksums before = All();
  ASSERT_EQ(before.size(), 1u + 2 * kWorldSize);
  const std::map<std::string, int> executors = Executors();
  for (const auto& [label, pid] : executors) ASSERT_EQ(kill(pid, SIGKILL), 0);
  for (const auto& [label, pid] : executors) {
    ASSERT_TRUE(Eventually([&, label = label, pid = pid] {
      const auto now = ExecutorsOf(getpid());
      return now.count(label) > 0 && now.at(label) != pid;
    }));
  }
  EXPECT_EQ(All(), before) << "after the kill";
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  EXPECT_EQ(All(), before) << "after the new executors started";
  ASSERT_OK(Train(&team, device_.get(), kSteps));
  EXPECT_NE(All(), before) << "training went on in this memory";
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Values(&team, device_.get()));
  EXPECT_EQ(values, expected);
}

// Each rank's executor is killed there, or stopped, as by a driver that hangs, and killed for it.
class GpuFaultsAtPointsTest
    : public GpuFaultsTest,
      public testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(GpuFaultsAtPointsTest, ExecutorsAreReplacedAndTheModelIsTheSame) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  const auto& [point, action] = GetParam();
  StartCluster(absl::StrCat(point, action));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Job(*cluster_)));
  const std::map<std::string, int> executors = Executors();
  ASSERT_OK(Train(&team, device_.get(), kSteps));
  for (const auto& [label, pid] : Executors()) EXPECT_NE(pid, executors.at(label)) << label;
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Values(&team, device_.get()));
  EXPECT_EQ(values, expected);
}

// In the middle of the steps; the successors do not come there again.
INSTANTIATE_TEST_SUITE_P(Steps, GpuFaultsAtPointsTest,
                         testing::Combine(testing::Values("step.before-vote", "step.after-vote",
                                                          "step.after-decision",
                                                          "step.before-publish"),
                                          testing::Values("=kill@8", "=stop@8")));
INSTANTIATE_TEST_SUITE_P(Units, GpuFaultsAtPointsTest,
                         testing::Combine(testing::Values("reduce.started"),
                                          testing::Values("=kill@22", "=stop@22")));

TEST_F(GpuFaultsTest, KilledTrainerLeavesTheShardsAndItsSuccessorEndsWithTheSameModel) {
  StartCluster();
  ASSERT_EQ(mkfifo((folder_ + "/resume").c_str(), 0600), 0);
  std::vector<std::unique_ptr<ChildProcess>> trainers;
  for (int rank = 0; rank < kWorldSize; ++rank)
    trainers.push_back(StartTrainer(rank, false, "model"));
  for (const auto& trainer : trainers) ASSERT_TRUE(Pauses(trainer.get()));
  const WatchedMemory::Checksums before = States(7);
  trainers[1]->Kill(SIGKILL);
  EXPECT_EQ(trainers[1]->Wait(), 128 + SIGKILL);
  EXPECT_EQ(States(7), before) << "after the kill";
  trainers[1] = StartTrainer(1, true, "model");
  ASSERT_TRUE(Pauses(trainers[1].get()));
  EXPECT_EQ(States(7), before) << "after its successor attached";
  // Open for both, so that it neither waits for a reader nor ends for one that comes later.
  UniqueFd resume(open((folder_ + "/resume").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(resume.get(), 0);
  for (const auto& trainer : trainers) ExpectEndsWell(trainer.get());
  EXPECT_NE(States(7), before) << "training went on in this memory";

  cluster_.reset();
  StartCluster();
  for (int rank = 0; rank < kWorldSize; ++rank)
    trainers[rank] = StartTrainer(rank, false, "undisturbed");
  for (const auto& trainer : trainers) ExpectEndsWell(trainer.get());
  const std::string undisturbed = ReadFile(folder_ + "/undisturbed");
  EXPECT_FALSE(undisturbed.empty());
  EXPECT_TRUE(ReadFile(folder_ + "/model") == undisturbed);
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  if (const auto ended = tessera::gpu_check::RunFaultProgram(argc, argv)) return *ended;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
