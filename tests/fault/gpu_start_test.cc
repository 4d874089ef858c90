// A job that is trained on a GPU, which is a fake here, and whose trainer comes back with the
// executor in its process, while the driver has no memory for one of its calls: the error is told
// by name, nothing of it is left, and the job continues from where it was, to the same bits.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_clusters.h"
#include "tests/testing/gpu_training.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/rank_device.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FakeGpu;
using testing_support::FakeGpuMemoryInProcess;
using testing_support::GpuClusters;
using testing_support::JobState;
using testing_support::MakeFakeGpuDevice;
using testing_support::ReadJobState;
using testing_support::TrainToyOn;

struct Case {
  std::string name;
  bool in_process = false;  // Else the worker has an executor, too, while no trainer is there.
  bool offload = false;
};

class GpuStartTest : public GpuClusters, public testing::WithParamInterface<Case> {
 protected:
  // The worker learns by its socket that the trainer before is gone, which may take its time.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options) {
    while (true) {
      absl::StatusOr<std::unique_ptr<Session>> session = Session::Open(options);
      if (!absl::IsAlreadyExists(session.status())) return session;
    }
  }
  // One try to come back and take a step. Errors: that of whichever call failed.
  absl::Status StepOnce(const SessionOptions& options, int64_t step) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Open(options));
    return TrainToyOn(session.get(), gpu_.get(), step);
  }
  static absl::StatusOr<JobState> StateAfter(const SessionOptions& options, RankDevice* device,
                                             int64_t step) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Open(options));
    RETURN_IF_ERROR(TrainToyOn(session.get(), device, step));
    return ReadJobState(session.get());
  }
};

TEST_P(GpuStartTest, MemoryThatRunsOutAtAnyCallIsToldAndTheJobGoesOnToTheSameBits) {
  SessionOptions job = Job(/*world_size=*/1);
  job.rank = 0;
  job.config.cpu_offload = GetParam().offload;
  LocalCluster::Options in_process;
  in_process.device_memory = FakeGpuMemoryInProcess();
  ASSERT_OK_AND_ASSIGN(const auto other_cluster, LocalCluster::Start(in_process));
  SessionOptions options = On(GetParam().in_process ? *other_cluster : *on_gpu_, job);
  options.host_executor = RunExecutorHere({MakeFakeGpuDevice});
  int64_t step = 1;
  ASSERT_OK(StepOnce(options, step));
  const std::string held = FakeGpu()->Held();
  int num_told = 0;
  for (const std::string call :
       {"MemAlloc", "MemHostAlloc", "MemMap", "StreamCreateWithPriority"}) {
    bool hit = true;
    // Each of the first ones, and then fewer and fewer of a start's.
    for (int skip = 0; hit; skip += 1 + skip / 2) {
      SCOPED_TRACE(absl::StrCat(call, " after ", skip));
      FakeGpu()->FailCall(call, kCudaOutOfMemory, skip);
      ++step;
      absl::Status status = StepOnce(options, step);
      hit = FakeGpu()->ForgetFailures() == 0;
      if (!status.ok()) {
        ++num_told;
        EXPECT_TRUE(hit);
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cu" + call)));
        status = StepOnce(options, step);
      }
      ASSERT_OK(status);
      if (GetParam().in_process) {
        EXPECT_EQ(FakeGpu()->Held(), held);
      }
    }
  }
  EXPECT_GT(num_told, 0);
  ASSERT_OK_AND_ASSIGN(const JobState state, StateAfter(options, gpu_.get(), step));
  ASSERT_OK_AND_ASSIGN(const JobState expected, StateAfter(On(*on_host_, job), host_.get(), step));
  EXPECT_TRUE(state == expected);
}

INSTANTIATE_TEST_SUITE_P(Where, GpuStartTest,
                         testing::Values(Case{"OnTheGpu"}, Case{"Offloaded", false, true},
                                         Case{"InProcess", true}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
