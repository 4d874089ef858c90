// A cluster of two workers of GPUs, which are fakes here, whose drivers pass no memory between
// processes, and one of workers without a GPU: each trainer has its rank's executor and
// parameters in its process, and the worker the state. A test fixture.
#ifndef TESSERA_TESTS_INTEGRATION_GPU_IN_PROCESS_FIXTURE_H_
#define TESSERA_TESTS_INTEGRATION_GPU_IN_PROCESS_FIXTURE_H_

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_clusters.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {

using testing_support::FakeGpu;
using testing_support::FakeGpuMemoryInProcess;
using testing_support::JobState;
using testing_support::MakeFakeGpuDevice;
using testing_support::StateOf;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::WindowedStepOn;

inline constexpr int kUnits = 6;

class GpuInProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/gpu-in-process-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
    ASSERT_OK_AND_ASSIGN(host_, MakeFakeGpuDevice(kHostDevice));
    held_ = FakeGpu()->Held();
    imports_ = FakeGpu()->num_calls("MemImportFromShareableHandle");
    LocalCluster::Options options;
    options.num_workers = 2;
    ASSERT_OK_AND_ASSIGN(on_host_, LocalCluster::Start(options));
    options.device_memory = FakeGpuMemoryInProcess();
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = MakeFakeGpuDevice;
    ASSERT_OK_AND_ASSIGN(on_gpu_, LocalCluster::Start(options));
  }
  // Of all tests here: no memory is left on the device, and none was passed to anybody.
  void TearDown() override {
    EXPECT_EQ(FakeGpu()->Held(), held_);
    if (!is_mixed_) {
      EXPECT_EQ(FakeGpu()->num_calls("MemImportFromShareableHandle"), imports_);
    }
    on_gpu_.reset();
    on_host_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  SessionOptions Job(int world_size = 2) {
    SessionOptions job =
        ToyOptions(*on_host_, absl::StrCat("job", ++num_jobs_), world_size, kUnits);
    job.model = ToyModel(kUnits, /*with_frozen=*/true);
    job.config.max_gathered_units = 1;
    job.config.max_gradient_norm = 0.5;
    job.make_device = MakeFakeGpuDevice;
    job.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
    return job;
  }
  // A rank on each worker, in their order.
  std::vector<SessionOptions> On(const LocalCluster& cluster, const SessionOptions& job) const {
    std::vector<SessionOptions> by_rank(job.config.world_size, job);
    for (int rank = 0; rank < job.config.world_size; ++rank) {
      by_rank[rank].rank = rank;
      by_rank[rank].coordinator_address = cluster.coordinator_address();
      by_rank[rank].worker_address = cluster.worker_address(rank);
      if (&cluster == on_gpu_.get())
        by_rank[rank].host_executor = RunExecutorHere({MakeFakeGpuDevice});
    }
    return by_rank;
  }
  absl::StatusOr<TrainerTeam> Open(const LocalCluster& cluster, const SessionOptions& job) const {
    return TrainerTeam::OpenEach(On(cluster, job));
  }
  RankDevice* DeviceOf(Session* session) const {
    return DeviceGradients(session).available() ? gpu_.get() : host_.get();
  }
  absl::Status TrainOne(Session* session, int64_t last_step) const {
    while (true) {
      absl::Status status = testing_support::InitializeToy(session);
      while (status.ok() && session->next_step() <= last_step) {
        const int64_t step = session->next_step();
        status = session->RunStep([&] {
          // The third step goes another way through the model than what was recorded.
          return WindowedStepOn(session, DeviceOf(session), step, /*backwards=*/step == 3);
        });
      }
      if (!absl::IsAborted(status)) return status;
      RETURN_IF_ERROR(session->Recover());
    }
  }
  absl::Status Train(TrainerTeam* team, int64_t last_step) const {
    return team->RunAll([&](Session* session) { return TrainOne(session, last_step); });
  }
  JobState OnTheProcessor(const SessionOptions& job, int64_t steps) {
    auto team = Open(*on_host_, job);
    EXPECT_OK(team);
    EXPECT_OK(Train(&*team, steps));
    const JobState state = StateOf(&*team);
    Delete(*on_host_, job.job_id);
    return state;
  }
  static void Delete(const LocalCluster& cluster, const std::string& job) {
    v1::DeleteJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id(job);
    EXPECT_OK(DeleteJob({cluster.coordinator_address()}, request, absl::Now() + absl::Seconds(20)));
  }
  static absl::Status Save(TrainerTeam* team, const std::string& path,
                           const SaveOptions& options = {}) {
    return team->RunAll([&](Session* session) {
      return SaveCheckpoint(session, path, {{}, ""}, options);
    });
  }
  static absl::Status Load(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) { return LoadCheckpoint(session, path).status(); });
  }

  std::string folder_, held_;
  int imports_ = 0, num_jobs_ = 0;
  bool is_mixed_ = false;
  std::unique_ptr<RankDevice> gpu_, host_;
  std::unique_ptr<LocalCluster> on_host_, on_gpu_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_GPU_IN_PROCESS_FIXTURE_H_
