// A rank on a GPU whose driver passes no memory between processes, as its worker sees it: the test
// is the coordinator and the trainer, whose executor is real and on a fake of a GPU.
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/executor/rank_executor.h"
#include "worker/keeper/hosted_job_fixture.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

class HostedJobNeedsHostsTest : public HostedJobFixture {
 protected:
  void SetUp() override {
    FakeCudaApi::Options options;
    options.descriptors = false;
    api_ = std::make_unique<FakeCudaApi>(options);
    ASSERT_OK_AND_ASSIGN(memory_, CudaDeviceMemory::Create(api_.get(), 0));
    device_memory_ = memory_.get();
  }
  void TearDown() override {
    job_.reset();
    if (trainer_.joinable()) trainer_.join();
    EXPECT_EQ(launcher_->launches(), 0) << "the worker never runs one";
    EXPECT_EQ(api_->Held(), "");
  }
  // A trainer that hosts, and its executor.
  void AttachAndHost(int64_t first_epoch) {
    ASSERT_OK_AND_ASSIGN(GivenRank given, Attach(/*hosts_executor=*/true));
    attachment_ = Incarnation(given.response.attachment());
    EXPECT_EQ(given.response.epoch(), first_epoch - 1);
    EXPECT_TRUE(given.response.needs_trainers_executor());
    trainer_ = std::thread([this, socket = std::move(given.fds.back())]() mutable {
      ExecutorMachine machine;
      machine.make_device = [this](const DeviceName& device) {
        return CudaRankDevice::Create(api_.get(), device);
      };
      EXPECT_OK(RunRankExecutor(std::move(socket), machine));
    });
  }
  void StartPrepared(int64_t epoch) {
    EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), epoch);
    v1::StartEpoch start;
    start.set_epoch(epoch);
    job_->Start(start);
  }

  std::unique_ptr<FakeCudaApi> api_;
  std::unique_ptr<DeviceMemory> memory_;
  Incarnation attachment_;
  std::thread trainer_;
};

TEST_F(HostedJobNeedsHostsTest, EpochWaitsForATrainerThatHostsWhomeverItComesBefore) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  AttachAndHost(/*first_epoch=*/1);  // Before any epoch.
  Prepare(1);
  StartPrepared(1);
  job_->KillExecutor(Rank(0));
  trainer_.join();
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("the executor of rank 0 ended"));
  job_->Detach(Rank(0), attachment_, Leaving::kDone);
  Prepare(2);
  AttachAndHost(/*first_epoch=*/2);  // While it is prepared.
  StartPrepared(2);
}

TEST_F(HostedJobNeedsHostsTest, WaitIsToldToTheCoordinatorWithTheReasonAndEndsWithATrainer) {
  Host(NewThreadLauncher(), 1, /*answer_timeout=*/absl::Milliseconds(50));
  ASSERT_OK(created_);
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    Prepare(epoch);
    const v1::RankFailure failure = Await(v1::WorkerEvent::kFailure).failure();
    EXPECT_EQ(failure.epoch(), epoch);
    EXPECT_THAT(failure.reason(),
                AllOf(HasSubstr("rank 0 of job 'toy'"), HasSubstr("SessionOptions::host_executor"),
                      HasSubstr("on worker 'w'"), HasSubstr("no descriptors")));
  }
  AttachAndHost(/*first_epoch=*/3);  // Where an epoch was given up.
  while (job_->Progress().ranks().at(0).executor_pid() != kTrainerPid) std::this_thread::yield();
}

TEST_F(HostedJobNeedsHostsTest, TrainerThatDoesNotHostIsRefusedAndLeavesTheRankFree) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Prepare(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Attach(), StatusIs(StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("worker 'w'"), HasSubstr("host_executor"),
                                         HasSubstr("no descriptors"))));
  }
  AttachAndHost(/*first_epoch=*/1);
  EXPECT_THAT(Attach(), StatusIs(StatusCode::kAlreadyExists, testing::_));
  StartPrepared(1);
}

TEST_F(HostedJobNeedsHostsTest, StateIsInTheHostsMemory) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  char state[64];
  ASSERT_OK_AND_ASSIGN(const auto reader, job_->regions().OpenState(Rank(0)));
  EXPECT_OK(reader->Read(state, 0, sizeof(state)));
}

TEST_F(HostedJobNeedsHostsTest, SeveralRanksOfAJobAreRefusedWithTheReason) {
  Host(NewThreadLauncher(), 2);
  EXPECT_THAT(created_, StatusIs(StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("2 ranks of a job on one GPU"),
                                       HasSubstr("1 is the most"), HasSubstr("no descriptors"))));
}

TEST_F(HostedJobNeedsHostsTest, JobEndsWhileItsRankWaits) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Prepare(1);
  job_.reset();
}

}  // namespace
}  // namespace tessera
