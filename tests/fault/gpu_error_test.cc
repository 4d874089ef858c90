// Errors of the GPU, which is a fake here, in executors of jobs that train: the executor ends,
// since nothing works in it any more, the next one has a device that works, and no bit differs from
// those of an undisturbed run. Memory that there is not is the job's error, and no other job's.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "tests/demo/child_process.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_process_cluster.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::FakeGpu;
using testing_support::GpuProcessCluster;
using testing_support::InitializeToy;
using testing_support::ReadFile;
using testing_support::ToyStepOn;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

struct Breaking {
  std::string name, faults;
  bool offload = false, in_backward = false;
};

// Each rank's executor meets the error, and each one that replaces it likewise.
class GpuErrorTest : public GpuProcessCluster, public testing::WithParamInterface<Breaking> {};

TEST_P(GpuErrorTest, ExecutorThatMeetsItEndsAndNoStepIsLostOrDoneTwice) {
  StartCluster(GetParam().faults);
  const SessionOptions options = Options(GetParam().offload, GetParam().in_backward);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::map<std::string, int> first = Executors();
  ASSERT_OK(Train(&team, kSteps));
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
  EXPECT_NE(Executors(), first) << "some ended";
}

INSTANTIATE_TEST_SUITE_P(
    Calls, GpuErrorTest,
    testing::Values(Breaking{"Copy", "cuda.MemcpyAsync=fail@31"},
                    Breaking{"CopyOffloaded", "cuda.MemcpyAsync=fail@31", true},
                    Breaking{"CopyInBackward", "cuda.MemcpyAsync=fail@31", false, true},
                    Breaking{"Wait", "cuda.StreamSynchronize=fail@45"},
                    Breaking{"WaitOffloaded", "cuda.StreamSynchronize=fail@46", true},
                    Breaking{"WaitInBackward", "cuda.StreamSynchronize=fail@47", true, true},
                    Breaking{"Context", "cuda.CtxSetCurrent=fail@201"},
                    Breaking{"GradientsEvent", "cuda.EventQuery=fail@31"},
                    Breaking{"GradientsEventOffloaded", "cuda.EventQuery=fail@32", true},
                    Breaking{"MarkOffloaded", "cuda.EventRecord=fail@31", true},
                    Breaking{"AwaitMarkOffloaded", "cuda.EventSynchronize=fail@31", true},
                    Breaking{"ForGood", "cuda.call=fail@400"},
                    Breaking{"ForGoodLater", "cuda.call=fail@451"},
                    Breaking{"ForGoodOffloaded", "cuda.call=fail@402", true},
                    Breaking{"ForGoodInBackward", "cuda.call=fail@403", false, true}),
    [](const testing::TestParamInfo<Breaking>& info) { return info.param.name; });

using GpuErrorOfOneTest = GpuProcessCluster;

// What the trainers are told; otherwise they only see a step that is done again.
TEST_F(GpuErrorOfOneTest, TrainersOfAllRanksAreToldOfTheErrorByName) {
  StartCluster("cuda.call=fail@400");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(/*offload=*/false)));
  for (const absl::Status& status : team.Run([&](Session* session) -> absl::Status {
         RETURN_IF_ERROR(InitializeToy(session));
         while (session->next_step() < 1000) {
           // A trainer that has done nothing of the step would wait for the next epoch.
           RETURN_IF_ERROR(session->DropGradients());
           RETURN_IF_ERROR(ToyStepOn(session, gpu_.get(), session->next_step()));
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                 AllOf(HasSubstr("rank "), HasSubstr("cuda:0"),
                                       HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"))));
  }
}

// The job waits, and its state says for what.
class GpuWantTest : public GpuProcessCluster {
 protected:
  void ExpectToldOf(const SessionOptions& options, const testing::Matcher<std::string>& told) {
    v1::CreateJobRequest create;
    create.set_request_id(NewRequestId());
    create.set_job_id(options.job_id);
    *create.mutable_model() = EncodeModel(options.model);
    *create.mutable_config() = EncodeJobConfig(options.config);
    ASSERT_OK(CreateJob({cluster_->coordinator_address()}, create, absl::Now() + absl::Minutes(1))
                  .status());
    v1::Job job;
    EXPECT_TRUE(Eventually([&] {
      const auto view =
          GetJob({cluster_->coordinator_address()}, options.job_id, absl::Now() + absl::Minutes(1));
      if (view.ok()) job = *view;
      return told.Matches(job.state_reason());
    })) << job.DebugString();
  }
};

TEST_F(GpuWantTest, DeviceThatNoExecutorCanUseIsToldWithItsReason) {
  StartCluster("cuda.StreamCreateWithPriority=fail@1");
  ExpectToldOf(Options(/*offload=*/false), HasSubstr("times before it was ready"));
}

TEST_F(GpuWantTest, JobForWhichTheGpuHasNoRoomIsToldByNameAndOthersGoOn) {
  StartCluster();
  const SessionOptions options = Options(/*offload=*/false);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(Train(&team, 2));
  const std::string held = FakeGpu()->Held();
  SessionOptions large = options;
  large.job_id = "large";
  large.config.world_size = 1;
  large.model = {{{"root", {{"w", {100'000'000}, DType::kFp32}}}}};
  ExpectToldOf(large, AllOf(HasSubstr("large/0/state: cuda:0: a region of 2800"),
                            HasSubstr("of 1073741824 bytes are free")));
  EXPECT_EQ(FakeGpu()->Held(), held);
  ASSERT_OK(Train(&team, 4));
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, 4));
}

// The sum of an offloaded rank's slices has room of the GPU that is taken at the first reduction.
// Lack of it is not an error of the device: the same executors have it in the next epoch.
TEST_F(GpuWantTest, SumForWhichThereWasNoRoomIsToldByBytesAndTheSameExecutorsGoOn) {
  StartCluster("cuda.MemAlloc=fail@4");
  const SessionOptions options = Options(/*offload=*/true);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::map<std::string, int> first = Executors();
  std::atomic<int> num_told{0};
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    while (true) {
      const absl::Status status = TrainToyOn(session, gpu_.get(), kSteps);
      if (!absl::IsResourceExhausted(status)) return status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("cuMemAlloc"), HasSubstr("wanted "), HasSubstr("are free")));
      ++num_told;
      RETURN_IF_ERROR(session->Recover());
    }
  }));
  EXPECT_GT(num_told, 0);
  EXPECT_EQ(Executors(), first) << "none ended";
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
}

// Events can be made and named there, and the executor is refused: the trainers wait by themselves.
TEST_F(GpuWantTest, ExecutorsThatCanOpenNoEventOfATrainerCostAnEpochAndNoBit) {
  StartCluster("cuda.IpcOpenEventHandle=fail@1");
  const SessionOptions options = Options(/*offload=*/false);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::map<std::string, int> first = Executors();
  testing::internal::CaptureStdout();
  const absl::Status trained = Train(&team, kSteps);
  const std::string log = testing::internal::GetCapturedStdout();
  ASSERT_OK(trained);
  for (const char* rank : {"rank 0", "rank 1"})
    EXPECT_THAT(log, HasSubstr(absl::StrCat(rank, ": its executor cannot open events")));
  EXPECT_EQ(Executors(), first) << "none ended";
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
}

// A worker that was told to use a GPU does not do without one.
TEST(GpuWorkerTest, WorkerOfAMachineWithoutTheGpuSaysSoAndEnds) {
  if (LoadCudaApi().ok()) GTEST_SKIP() << "this machine has a driver";
  std::string folder = testing::TempDir() + "/gpu-worker-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_OK_AND_ASSIGN(const auto worker, demo::ChildProcess::Start(
                                              {"worker/tessera-worker", "--coordinator=127.0.0.1:1",
                                               "--worker-id=w", "--gpu=7", "--socket-dir=" + folder,
                                               "--executor-binary=worker/tessera-executor"},
                                              folder + "/log"));
  EXPECT_EQ(worker->Wait(), 1);
  EXPECT_THAT(ReadFile(folder + "/log"), HasSubstr("GPU 7: "));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera
