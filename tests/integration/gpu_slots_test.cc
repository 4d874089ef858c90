// Jobs on GPUs, which are fakes here, whose units share slots of parameters: the bits are those of
// workers without a GPU, with a part of the memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/held_stream.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::FakeGpu;
using testing_support::FakeGpuMemory;
using testing_support::FakeNccl;
using testing_support::HeldStream;
using testing_support::InitializeToy;
using testing_support::MakeFakeGpuDevice;
using testing_support::ReadWindow;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::WindowedStepOn;

constexpr int kUnits = 9;  // With one gathered ahead: units 1, 4 and 7 share a slot.
constexpr int64_t kSteps = 6;
using Windows = std::vector<std::vector<std::vector<float>>>;  // By unit and parameter.

enum class Way { kNccl, kMemoryOfTheHosts };

class GpuSlotsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
    ASSERT_OK_AND_ASSIGN(host_, MakeFakeGpuDevice(kHostDevice));
  }
  void Start(int num_workers, bool on_gpu, Way way = Way::kMemoryOfTheHosts,
             const std::string& executor_binary = "", int num_without_gpu = 0) {
    LocalCluster::Options options;
    options.num_workers_without_gpu = num_without_gpu;
    options.num_workers = num_workers;
    options.executor_binary = executor_binary;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = MakeFakeGpuDevice;
    if (on_gpu) options.device_memory = FakeGpuMemory();
    if (way == Way::kNccl)
      options.machine->make_direct = [this](RankDevice* device) { return nccl_.Make(device); };
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  RankDevice* DeviceOf(Session* session) const {
    return DeviceGradients(session).available() ? gpu_.get() : host_.get();
  }
  SessionOptions Job(int world_size) const {
    SessionOptions options = ToyOptions(*cluster_, "toy", world_size, kUnits);
    options.config.max_gathered_units = 1;
    options.config.max_gradient_norm = 0.5;
    options.make_device = MakeFakeGpuDevice;
    return options;
  }
  absl::StatusOr<TrainerTeam> Open(const SessionOptions& job) const {
    SessionOptions options = job;
    options.coordinator_address = cluster_->coordinator_address();
    std::vector<std::string> workers;
    for (int rank = 0; rank < job.config.world_size; ++rank)
      workers.push_back(cluster_->worker_address(rank));
    return TrainerTeam::Open(options, workers);
  }
  // Recovers from every failure.
  absl::Status TrainTo(Session* session, int64_t last_step) const {
    while (true) {
      absl::Status status = InitializeToy(session);
      while (status.ok() && session->next_step() <= last_step) {
        const int64_t step = session->next_step();
        status = session->RunStep(
            // The third step goes another way through the model than what was recorded.
            [&] {
              return WindowedStepOn(session, DeviceOf(session), step, /*backwards=*/step == 3);
            });
      }
      if (!absl::IsAborted(status)) return status;
      RETURN_IF_ERROR(session->Recover());
    }
  }
  absl::StatusOr<Windows> ReadWindows(Session* session, Precision precision) const {
    Windows windows;
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(session->Unshard(unit, precision));
      ASSIGN_OR_RETURN(windows.emplace_back(), ReadWindow(session, DeviceOf(session), unit));
      RETURN_IF_ERROR(session->Reshard(unit));
    }
    return windows;
  }
  // What all ranks see after training, in the compute dtype and in full.
  absl::StatusOr<std::vector<Windows>> Train(const SessionOptions& job) {
    ASSIGN_OR_RETURN(TrainerTeam team, Open(job));
    std::vector<std::vector<Windows>> seen(job.config.world_size);
    RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(TrainTo(session, kSteps));
      for (const Precision precision : {Precision::kCompute, Precision::kFull}) {
        ASSIGN_OR_RETURN(seen[session->rank()].emplace_back(), ReadWindows(session, precision));
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(seen.front(), seen.back());
    return seen.front();
  }

  FakeNccl nccl_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<RankDevice> gpu_, host_;
};

struct Case {
  int num_workers;
  Way way;
  DType compute_dtype = DType::kFp32;
  bool cpu_offload = false;
  bool in_backward = false;
};

class GpuSlotsTrainingTest : public GpuSlotsTest, public testing::WithParamInterface<Case> {};

TEST_P(GpuSlotsTrainingTest, HasTheBitsOfWorkersWithoutAGpu) {
  const Case& test = GetParam();
  std::vector<std::vector<Windows>> results;
  for (const bool on_gpu : {false, true}) {
    Start(test.num_workers, on_gpu, test.way);
    SessionOptions job = Job(test.num_workers);
    job.config.compute_dtype = job.config.reduce_dtype = test.compute_dtype;
    job.config.cpu_offload = test.cpu_offload;
    job.config.optimizer_in_backward = test.in_backward;
    if (test.in_backward) job.config.max_gradient_norm = 0;
    ASSERT_OK_AND_ASSIGN(auto seen, Train(job));
    results.push_back(std::move(seen));
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuSlotsTrainingTest,
    testing::Values(Case{2, Way::kNccl}, Case{3, Way::kNccl, DType::kBf16},
                    Case{2, Way::kMemoryOfTheHosts, DType::kBf16},
                    Case{2, Way::kMemoryOfTheHosts, DType::kFp32, /*cpu_offload=*/true},
                    Case{2, Way::kNccl, DType::kFp32, false, /*in_backward=*/true}),
    [](const testing::TestParamInfo<Case>& info) {
      return absl::StrCat(
          info.param.num_workers, "workers", info.param.way == Way::kNccl ? "Nccl" : "",
          info.param.compute_dtype == DType::kBf16 ? "Half" : "",
          info.param.cpu_offload ? "Offloaded" : "", info.param.in_backward ? "InBackward" : "");
    });

TEST_F(GpuSlotsTest, ExecutorsThatAreKilledInWindowsCostNoBit) {
  Start(2, /*on_gpu=*/false);
  ASSERT_OK_AND_ASSIGN(const auto expected, Train(Job(2)));
  Start(2, /*on_gpu=*/true, Way::kMemoryOfTheHosts, "tests/testing/fake_gpu_executor");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(Job(2)));
  std::vector<Windows> seen(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    for (int64_t step = 1; step <= kSteps; ++step) {
      RETURN_IF_ERROR(TrainTo(session, step));
      if (session->rank() == 0 && step < kSteps)
        cluster_->KillExecutorForTest("toy", static_cast<int>(step % 2));
    }
    ASSIGN_OR_RETURN(seen[session->rank()], ReadWindows(session, Precision::kCompute));
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen[0], expected[0]);
}

// Those without a GPU have no slots, and gather what the others do.
TEST_F(GpuSlotsTest, WorkersWithAndWithoutAGpuTrainOneJob) {
  Start(3, /*on_gpu=*/false);
  ASSERT_OK_AND_ASSIGN(const auto expected, Train(Job(3)));
  Start(3, /*on_gpu=*/true, Way::kMemoryOfTheHosts, "", /*num_without_gpu=*/1);
  ASSERT_OK_AND_ASSIGN(const auto seen, Train(Job(3)));
  EXPECT_EQ(seen, expected);
}

TEST_F(GpuSlotsTest, RankTakesMemoryForItsSlicesAndTheSlotsAlone) {
  std::vector<int64_t> bytes;
  for (const int max_gathered_units : {1, kUnits}) {
    Start(2, /*on_gpu=*/true, Way::kNccl);
    SessionOptions job = Job(2);
    job.config.max_gathered_units = max_gathered_units;
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(job));
    ASSERT_OK(team.RunAll([&](Session* session) { return TrainTo(session, 1); }));
    int64_t of_rank = 0;
    EXPECT_TRUE(Eventually([&] {
      const auto of_job =
          GetJob({cluster_->coordinator_address()}, job.job_id, absl::Now() + absl::Seconds(10));
      of_rank =
          of_job.ok() && of_job->ranks().contains(0) ? of_job->ranks().at(0).parameter_bytes() : 0;
      return of_rank > 0;
    }));
    bytes.push_back(of_rank);
  }
  // A place is a page at least, which is more than any of these units has.
  const int64_t page = 4096;
  EXPECT_EQ(bytes[1], kUnits * page);
  EXPECT_GE(bytes[0], 4 * page);
  EXPECT_LE(bytes[0], 4 * page + (kUnits - 1) * 512) << "the root, three slots, slices";
}

TEST_F(GpuSlotsTest, SecondWindowOnASlotIsRefusedByNameAndTrainingGoesOn) {
  Start(2, /*on_gpu=*/true, Way::kNccl);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(Job(2)));
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(TrainTo(session, 2));
    DeviceGradients device(session);
    RETURN_IF_ERROR(session->Unshard(1));
    for (const int other : {2, 3, 0}) {
      EXPECT_EQ(device.OtherInSlot(other), std::nullopt);
      RETURN_IF_ERROR(session->Unshard(other));
    }
    EXPECT_EQ(device.OtherInSlot(4), 1);
    for (const Precision precision : {Precision::kCompute, Precision::kFull}) {
      EXPECT_THAT(session->Unshard(4, precision),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           testing::AllOf(HasSubstr("'unit4'"), HasSubstr("'unit1'"),
                                          HasSubstr("max_gathered_units"))));
    }
    RETURN_IF_ERROR(session->Reshard(1));
    EXPECT_EQ(device.OtherInSlot(4), std::nullopt);
    RETURN_IF_ERROR(session->Unshard(4));
    for (const int unit : {4, 2, 3, 0}) RETURN_IF_ERROR(session->Reshard(unit));
    return TrainTo(session, 4);
  }));
}

TEST_F(GpuSlotsTest, WriteIsSeenInAWindowThatStaysOpenAndInTheNextOne) {
  Start(2, /*on_gpu=*/true, Way::kNccl);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(Job(2)));
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(TrainTo(session, 2));
    RETURN_IF_ERROR(session->Unshard(4));
    RETURN_IF_ERROR(session->WriteParameters({1, 4}, [](int unit, int p, Values values) {
      std::fill_n(values.as<float>().data(), values.size(), static_cast<float>(100 * unit + p));
    }));
    ASSIGN_OR_RETURN(const auto open, ReadWindow(session, DeviceOf(session), 4));
    EXPECT_THAT(open[0], testing::Each(400.0f));
    RETURN_IF_ERROR(session->Reshard(4));
    RETURN_IF_ERROR(session->Unshard(1));
    ASSIGN_OR_RETURN(const auto next, ReadWindow(session, DeviceOf(session), 1));
    EXPECT_THAT(next[1], testing::Each(101.0f));
    return session->Reshard(1);
  }));
}

TEST_F(GpuSlotsTest, SlotIsNotFilledWhileTheTrainersGpuReadsTheUnitBefore) {
  Start(2, /*on_gpu=*/true, Way::kMemoryOfTheHosts, "tests/testing/fake_gpu_executor");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(Job(2)));
  ASSERT_OK(team.RunAll([&](Session* session) { return TrainTo(session, 1); }));
  HeldStream reads(gpu_.get());
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(1));
    if (session->rank() == 0) DeviceGradients(session).AfterStream(reads.stream());
    RETURN_IF_ERROR(session->Reshard(1));
    return session->UnshardAsync(4);
  }));
  // The executor has come to it.
  EXPECT_TRUE(Eventually([&] {
    const auto job =
        GetJob({cluster_->coordinator_address()}, "toy", absl::Now() + absl::Seconds(10));
    return job.ok() && job->ranks().contains(0) && job->ranks().at(0).doing() == "unshard unit4";
  }));
  const auto first = [&](int unit) {
    return *reinterpret_cast<const float*>(team.session(0)->parameter(unit, 0));
  };
  const float before = first(1);
  EXPECT_EQ(first(4), before) << "one memory at two addresses";
  reads.LetGo();
  std::vector<Windows> windows(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(4));
    ASSIGN_OR_RETURN(auto unit4, ReadWindow(session, DeviceOf(session), 4));
    RETURN_IF_ERROR(session->Reshard(4));
    RETURN_IF_ERROR(session->Unshard(1));
    ASSIGN_OR_RETURN(auto unit1, ReadWindow(session, DeviceOf(session), 1));
    windows[session->rank()] = {std::move(unit1), std::move(unit4)};
    return session->Reshard(1);
  }));
  EXPECT_EQ(windows[0], windows[1]);
  EXPECT_EQ(before, windows[0][0][0][0]) << "not a bit of unit 4 yet";
  EXPECT_NE(before, windows[0][1][0][0]);
  ASSERT_OK(team.RunAll([&](Session* session) { return TrainTo(session, 3); }));
}

}  // namespace
}  // namespace tessera
