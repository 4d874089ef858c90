// Jobs on GPUs, which are fakes here, of several workers: what they compute is what workers without
// a GPU do, whichever way it goes from one to the other.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing_support::FakeGpu;
using testing_support::FakeGpuMemory;
using testing_support::FakeNccl;
using testing_support::MakeFakeGpuDevice;
using testing_support::ReadAllFrom;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

constexpr int kSteps = 5;

// kNcclOfOneGpu: the library refuses ranks of one GPU, and nobody has told it to join them.
enum class Way { kNccl, kNcclOfWhichOneCannotRegister, kNcclOfOneGpu, kMemoryOfTheHosts };

struct Case {
  int num_workers;
  int ranks_per_worker;
  Way way;
  bool cpu_offload = false;
};

class GpuWorkersTest : public testing::TestWithParam<std::tuple<Case, Strategy>> {
 protected:
  // Trains on all ranks and returns what the first and the last see, which are the same.
  absl::StatusOr<std::vector<float>> Train(LocalCluster* cluster, RankDevice* device,
                                           SessionOptions options, int ranks_per_worker) {
    options.coordinator_address = cluster->coordinator_address();
    options.make_device = MakeFakeGpuDevice;
    std::vector<std::string> workers;
    for (int rank = 0; rank < options.config.world_size; ++rank)
      workers.push_back(cluster->worker_address(rank / ranks_per_worker));
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options, workers));
    std::vector<std::vector<float>> values(options.config.world_size);
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(TrainToyOn(session, device, kSteps));
      ASSIGN_OR_RETURN(values[session->rank()], ReadAllFrom(session, device));
      return absl::OkStatus();
    }));
    EXPECT_EQ(values.front(), values.back());
    return values.front();
  }
};

TEST_P(GpuWorkersTest, TrainingHasTheBitsOfWorkersWithoutAGpu) {
  const auto& [test, strategy] = GetParam();
  FakeNccl nccl;
  LocalCluster::Options options;
  options.num_workers = test.num_workers;
  options.num_devices = test.ranks_per_worker;
  ASSERT_OK_AND_ASSIGN(const auto on_host, LocalCluster::Start(options));
  options.device_memory = FakeGpuMemory();
  options.machine = std::make_shared<ExecutorMachine>();
  options.machine->make_device = MakeFakeGpuDevice;
  if (test.way != Way::kMemoryOfTheHosts) {
    options.machine->make_direct = [&, way = test.way](RankDevice* device) {
      return nccl.Make(device, way == Way::kNcclOfWhichOneCannotRegister,
                       /*tell_apart=*/way != Way::kNcclOfOneGpu);
    };
  }
  const int world_size = test.num_workers * test.ranks_per_worker;
  SessionOptions job = ToyOptions(*on_host, "toy", world_size);
  job.config.strategy = strategy;
  if (strategy == Strategy::kHybridShard) job.config.shard_group_size = test.ranks_per_worker;
  job.config.max_gradient_norm = 0.5;
  job.config.cpu_offload = test.cpu_offload;
  ASSERT_OK_AND_ASSIGN(const auto host, MakeFakeGpuDevice(kHostDevice));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected,
                       Train(on_host.get(), host.get(), job, test.ranks_per_worker));
  ASSERT_FALSE(expected.empty());
  const int urgent_before = FakeGpu()->num_urgent_streams();
  const int pinned_before = FakeGpu()->num_calls("MemHostRegister");
  testing::internal::CaptureStdout();
  {
    ASSERT_OK_AND_ASSIGN(const auto on_gpu, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(const auto gpu, MakeFakeGpuDevice(0));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values,
                         Train(on_gpu.get(), gpu.get(), job, test.ranks_per_worker));
    EXPECT_EQ(values, expected);
  }
  const std::string log = testing::internal::GetCapturedStdout();
  // In a hybrid job what gathers and reduces goes first; what is offloaded is copied without a
  // stop.
  const int num_urgent = FakeGpu()->num_urgent_streams() - urgent_before;
  if (strategy == Strategy::kHybridShard) {
    EXPECT_GE(num_urgent, 2 * world_size) << "of gathers and of reductions of each rank";
  } else {
    EXPECT_EQ(num_urgent, 0);
  }
  EXPECT_EQ(FakeGpu()->num_calls("MemHostRegister") - pinned_before,
            test.cpu_offload ? world_size : 0);
  const std::string told = absl::StrCat("ranks 0 and 1 are both on ",
                                        UuidText(FakeCudaApi::UuidOf(0)), ": one rank of a GPU");
  EXPECT_EQ(absl::StrContains(log, told), test.way == Way::kNcclOfOneGpu) << log;
  const bool joins = test.way == Way::kNccl || test.way == Way::kNcclOfWhichOneCannotRegister;
  EXPECT_EQ(absl::StrContains(log, "data directly from GPU to GPU"), joins) << log;
  absl::MutexLock lock(&nccl.mu);
  EXPECT_EQ(static_cast<int>(nccl.apis.size()),
            test.way == Way::kMemoryOfTheHosts ? 0 : world_size);
  for (const auto& api : nccl.apis) {
    EXPECT_EQ(api->misuses(), 0);
    EXPECT_GE(api->num_aborts(), joins ? 2 : 0) << "one that reduces and one that gathers, closed";
    EXPECT_EQ(api->num_registered_calls() > 0, test.way == Way::kNccl);
    EXPECT_EQ(api->num_registered(), 0) << "nothing is left";
  }
}

std::string CaseName(const testing::TestParamInfo<std::tuple<Case, Strategy>>& info) {
  const auto& [of, strategy] = info.param;
  return absl::StrCat(of.num_workers, "workers", of.ranks_per_worker, "ranks",
                      of.way == Way::kNccl                           ? "Nccl"
                      : of.way == Way::kNcclOfWhichOneCannotRegister ? "NcclUnregistered"
                      : of.way == Way::kNcclOfOneGpu                 ? "NcclOneGpu"
                                                                     : "",
                      of.cpu_offload ? "Offloaded" : "", static_cast<int>(strategy));
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuWorkersTest,
    testing::Combine(testing::Values(Case{2, 1, Way::kNccl}, Case{3, 1, Way::kNccl},
                                     Case{3, 1, Way::kNcclOfWhichOneCannotRegister},
                                     Case{2, 1, Way::kNcclOfOneGpu}, Case{3, 1, Way::kNcclOfOneGpu},
                                     Case{2, 1, Way::kMemoryOfTheHosts},
                                     Case{2, 1, Way::kMemoryOfTheHosts, /*cpu_offload=*/true},
                                     Case{2, 2, Way::kMemoryOfTheHosts}),
                     testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                     Strategy::kHybridShard)),
    CaseName);

}  // namespace
}  // namespace tessera
