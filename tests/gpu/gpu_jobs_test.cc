// Whole jobs on a GPU: the bits of jobs on the host, also with killed executors.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/gpu/nccl_executors.h"
#include "tests/testing/flip_bit.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::FindGpuUnderTest;
using testing_support::FlipBit;
using testing_support::GpuUnderTest;
using testing_support::ReadAllFrom;
using testing_support::ToyOptions;
using testing_support::ToyStepOn;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

constexpr int kSteps = 12;

struct Case {
  int world_size;
  bool cpu_offload = false;
  int num_workers = 1;  // On the one GPU; of several, the ranks' units share slots.
};

class GpuJobsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    absl::StatusOr<GpuUnderTest> gpu = FindGpuUnderTest();
    if (absl::IsNotFound(gpu.status()) || absl::IsUnimplemented(gpu.status()))
      GTEST_SKIP() << gpu.status().message();
    ASSERT_OK(gpu);
    gpu_ = *std::move(gpu);
    if (gpu_.in_process() && GetParam().num_workers < GetParam().world_size)
      GTEST_SKIP() << "a worker has one rank of a job here: " << gpu_.memory->why_not_shared();
    ASSERT_OK_AND_ASSIGN(on_gpu_, gpu_.make_device(0));
    ASSERT_OK_AND_ASSIGN(on_host_, gpu_.make_device(kHostDevice));
  }
  SessionOptions Job(const LocalCluster& cluster) {
    const bool in_slots = GetParam().num_workers > 1;
    SessionOptions options =
        ToyOptions(cluster, "toy", GetParam().world_size, /*num_units=*/in_slots ? 9 : 3);
    options.config.max_gradient_norm = 0.5;
    options.config.cpu_offload = GetParam().cpu_offload;
    options.make_device = gpu_.make_device;
    return options;
  }
  absl::StatusOr<std::unique_ptr<LocalCluster>> StartOnGpu(const std::string& executor_binary) {
    LocalCluster::Options options;
    options.num_workers = GetParam().num_workers;
    options.num_devices = GetParam().world_size / GetParam().num_workers;
    options.executor_binary = executor_binary;
    options.device_memory = gpu_.memory;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = gpu_.make_device;
    return LocalCluster::Start(options);
  }
  // What a job of so many steps on the host ends with.
  absl::StatusOr<std::vector<float>> Expected() {
    LocalCluster::Options options;
    options.num_workers = GetParam().num_workers;
    options.num_devices = GetParam().world_size / GetParam().num_workers;
    ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(options));
    return TrainOn(cluster.get(), on_host_.get(), nullptr);
  }
  // All trainers host where they must.
  absl::StatusOr<TrainerTeam> OpenTeam(LocalCluster* cluster, const std::vector<bool>& hosts = {}) {
    std::vector<SessionOptions> by_rank(GetParam().world_size, Job(*cluster));
    for (int rank = 0; rank < GetParam().world_size; ++rank) {
      by_rank[rank].rank = rank;
      by_rank[rank].worker_address =
          cluster->worker_address(rank * GetParam().num_workers / GetParam().world_size);
      if (gpu_.in_process() || (!hosts.empty() && hosts[rank % hosts.size()]))
        by_rank[rank].host_executor = RunExecutorHere({gpu_.make_device});
    }
    return TrainerTeam::OpenEach(by_rank);
  }
  // `before` runs on rank 0 at the start of each try of a step.
  absl::StatusOr<std::vector<float>> TrainOn(LocalCluster* cluster, RankDevice* device,
                                             const std::function<void(int64_t step)>& before,
                                             const std::vector<bool>& hosts = {}) {
    ASSIGN_OR_RETURN(TrainerTeam team, OpenTeam(cluster, hosts));
    std::vector<std::vector<float>> values(GetParam().world_size);
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      while (session->next_step() <= kSteps) {
        if (before && session->rank() == 0 && session->initialized()) before(session->next_step());
        RETURN_IF_ERROR(TrainToyOn(session, device, session->next_step()));
      }
      ASSIGN_OR_RETURN(values[session->rank()], ReadAllFrom(session, device));
      return absl::OkStatus();
    }));
    EXPECT_EQ(values.front(), values.back());
    return values.front();
  }

  GpuUnderTest gpu_;
  std::unique_ptr<RankDevice> on_gpu_, on_host_;
};

TEST_P(GpuJobsTest, TrainToTheBitsOfTheProcessor) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(/*executor_binary=*/""));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                       TrainOn(cluster.get(), on_gpu_.get(), nullptr));
  EXPECT_EQ(values, expected);
}

TEST_P(GpuJobsTest, ExecutorsThatAreKilledCostNoBit) {
  if (gpu_.in_process()) GTEST_SKIP() << "no executor is a process of its own here";
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(gpu_.executor_binary));
  int num_kills = 0;
  const auto kill_some = [&](int64_t step) {
    if (step % 4 != 0) return;
    cluster->KillExecutorForTest("toy", static_cast<int>(step / 4) % GetParam().world_size);
    ++num_kills;
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                       TrainOn(cluster.get(), on_gpu_.get(), kill_some));
  EXPECT_EQ(values, expected);
  EXPECT_GE(num_kills, kSteps / 4);
}

// All of them, or every other one, with the other executors in processes of their own.
TEST_P(GpuJobsTest, ExecutorsInTheirTrainersProcessHaveTheSameBits) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  for (const std::vector<bool>& hosts : {std::vector<bool>{true}, std::vector<bool>{false, true}}) {
    SCOPED_TRACE(hosts.size());
    if (gpu_.in_process() && hosts.size() > 1) continue;  // All do.
    ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(gpu_.executor_binary));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                         TrainOn(cluster.get(), on_gpu_.get(), nullptr, hosts));
    EXPECT_EQ(values, expected);
  }
}

// By executors that are processes of their own, and by their trainers.
TEST_P(GpuJobsTest, CheckpointIsLoadedToTheBitAndOneThatIsDamagedChangesNothing) {
  for (const bool hosts : {false, true}) {
    SCOPED_TRACE(hosts);
    if (gpu_.in_process() && !hosts) continue;
    ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(gpu_.executor_binary));
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(cluster.get(), {hosts}));
    const std::string path = absl::StrCat(testing::TempDir(), "/gpu-jobs-", getpid(), hosts);
    std::vector<std::vector<float>> saved(GetParam().world_size), trained = saved, read = saved;
    const auto run = [&](const std::function<absl::Status(Session*)>& body,
                         std::vector<std::vector<float>>* into) {
      return team.RunAll([&](Session* session) -> absl::Status {
        RETURN_IF_ERROR(body(session));
        ASSIGN_OR_RETURN((*into)[session->rank()], ReadAllFrom(session, on_gpu_.get()));
        return absl::OkStatus();
      });
    };
    const auto train = [&](Session* session) {
      return TrainToyOn(session, on_gpu_.get(), session->next_step());
    };
    const auto load = [&](Session* session) { return LoadCheckpoint(session, path).status(); };
    ASSERT_OK(run(train, &saved));
    ASSERT_OK(team.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
    ASSERT_OK(run(train, &trained));
    ASSERT_NE(saved, trained);
    FlipBit(path + "/optimizer.safetensors", -1, 0);
    const auto refused = [&](Session* session) {
      const absl::Status status = load(session);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      return absl::OkStatus();
    };
    ASSERT_OK(run(refused, &read));
    EXPECT_EQ(read, trained);
    FlipBit(path + "/optimizer.safetensors", -1, 0);
    ASSERT_OK(run(load, &read));
    EXPECT_EQ(read, saved);
    ASSERT_OK(run(train, &read));
    EXPECT_EQ(read, trained);
    std::filesystem::remove_all(path);
  }
}

TEST_P(GpuJobsTest, ExecutorsInTheirTrainersProcessThatAreKilledCostNoBit) {
  if (gpu_.in_process()) GTEST_SKIP() << "no executor is a process of its own here";
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(gpu_.executor_binary));
  const auto kill_some = [&](int64_t step) {
    if (step % 4 == 0)
      cluster->KillExecutorForTest("toy", static_cast<int>(step / 4) % GetParam().world_size);
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                       TrainOn(cluster.get(), on_gpu_.get(), kill_some, {true}));
  EXPECT_EQ(values, expected);
}

// Each rank a worker of its own, all on the one GPU: a way to test, and none to run.
class GpuNcclJobsTest : public GpuJobsTest {
 protected:
  void SetUp() override {
    GpuJobsTest::SetUp();
    if (IsSkipped()) return;
    if (!gpu_.nccl.ok()) GTEST_SKIP() << gpu_.nccl.message();
    if (gpu_.in_process()) GTEST_SKIP() << "nothing goes over NCCL here";
    ASSERT_OK(executors_.SetUp(&gpu_));
  }
  // That nothing else was chosen, which would go as well.
  void ExpectAllWentThroughNccl() {
    const std::string log = executors_.TakeLog();
    EXPECT_THAT(log, testing::HasSubstr("data directly from GPU to GPU"));
    EXPECT_THAT(log, testing::Not(testing::HasSubstr("through host memory")));
  }
  gpu_check::NcclExecutors executors_;
};

bool HasMapped(int pid, const std::string& library) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::string line;
  while (std::getline(maps, line)) {
    if (absl::StrContains(line, library)) return true;
  }
  return false;
}

TEST_P(GpuNcclJobsTest, TrainToTheBitsOfTheProcessorThroughNccl) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(executors_.program()));
  int num_with_nccl = 0;
  const auto look = [&](int64_t step) {
    if (step != kSteps) return;
    for (const auto& [label, pid] : ExecutorsOf(getpid()))
      num_with_nccl += HasMapped(pid, "libnccl");
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                       TrainOn(cluster.get(), on_gpu_.get(), look));
  EXPECT_EQ(values, expected);
  EXPECT_EQ(num_with_nccl, GetParam().world_size);
  ExpectAllWentThroughNccl();
}

TEST_P(GpuNcclJobsTest, ExecutorsThatAreKilledCostNoBit) {
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Expected());
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartOnGpu(executors_.program()));
  const auto kill_some = [&](int64_t step) {
    if (step == 4 || step == 8)
      cluster->KillExecutorForTest("toy", static_cast<int>(step / 4) % GetParam().world_size);
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                       TrainOn(cluster.get(), on_gpu_.get(), kill_some));
  EXPECT_EQ(values, expected);
  ExpectAllWentThroughNccl();
}

INSTANTIATE_TEST_SUITE_P(Device, GpuNcclJobsTest,
                         testing::Values(Case{2, /*cpu_offload=*/false, /*num_workers=*/2},
                                         Case{4, /*cpu_offload=*/false, /*num_workers=*/4}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return absl::StrCat(info.param.world_size, "ranks");
                         });

INSTANTIATE_TEST_SUITE_P(Device, GpuJobsTest,
                         testing::Values(Case{1}, Case{2}, Case{4}, Case{2, /*cpu_offload=*/true},
                                         Case{2, /*cpu_offload=*/false, /*num_workers=*/2}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return absl::StrCat(info.param.world_size, "ranks",
                                               info.param.cpu_offload ? "Offloaded" : "",
                                               info.param.num_workers > 1 ? "InSlots" : "");
                         });

}  // namespace
}  // namespace tessera
