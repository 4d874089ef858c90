// A worker that does not answer, or comes back without its memory: the shards are where they were
// or gone, and the job says which. Real processes; the worker is stopped with SIGSTOP.
#include <signal.h>

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::ReadFile;

class AbsenceTest : public ProcessCluster {
 protected:
  // Trains until all ranks wait in the middle of the run.
  void StartHalfRun() {
    pause_at_ = 2 * kSteps / 3;
    StartCoordinator();
    StartWorker();
    if (split_) StartSecondWorker();
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
    for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, pause_at_);
    ASSERT_TRUE(Eventually([&] { return Job().committed_step() == pause_at_ - 1; }));
  }
  v1::Job Job() {
    auto job = GetJob({coordinator_address()}, "toy", absl::Now() + absl::Seconds(10));
    EXPECT_OK(job);
    return job.ok() ? *job : v1::Job();
  }
  void Delete() {
    v1::DeleteJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id("toy");
    ASSERT_OK(DeleteJob({coordinator_address()}, request, absl::Now() + absl::Seconds(10)));
  }
  void AwaitState(v1::JobState state) {
    ASSERT_TRUE(Eventually([&] { return Job().state() == state; })) << Job().ShortDebugString();
  }
};

TEST_F(AbsenceTest, SilentWorkerKeepsItsShardsAndTheModelIsBitIdentical) {
  ASSERT_FALSE(UndisturbedModel().empty());
  worker_timeout_ = absl::Milliseconds(500);
  StartHalfRun();
  StartSpareWorker();
  worker_->Kill(SIGSTOP);
  AwaitState(v1::JOB_STATE_WAITING);
  EXPECT_THAT(Job().state_reason(), HasSubstr("needs worker 'w', which holds its shards"));
  worker_->Kill(SIGCONT);
  AwaitState(v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job().placements(0).worker_id(), "w");
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(AbsenceTest, TrainersOfTheWorkerThatIsThereHearThatTheJobIsLost) {
  split_ = true;
  StartHalfRun();
  second_worker_->Kill(SIGKILL);
  second_worker_->Wait();
  Resume();
  StartSecondWorker();
  AwaitState(v1::JOB_STATE_LOST);
  EXPECT_EQ(AwaitEnd(0), 1);
  EXPECT_THAT(ReadFile(folder_ + "/trainer.log"),
              HasSubstr("job 'toy' is lost: a part of its shards is gone with a worker's memory "
                        "(worker 'x' started again)"));
}

TEST_F(AbsenceTest, JobIsLostWithItsWorkersMemoryAndCanBeMadeAnew) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartHalfRun();
  StartSpareWorker();
  worker_->Kill(SIGKILL);
  worker_->Wait();
  Resume();
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 1);
  StartWorker();
  AwaitState(v1::JOB_STATE_LOST);
  EXPECT_THAT(Job().state_reason(),
              AllOf(HasSubstr("gone with the memory of worker 'w'"), HasSubstr("delete the job")));
  StartTrainer(0);
  EXPECT_EQ(AwaitEnd(0), 1);
  EXPECT_THAT(ReadFile(folder_ + "/trainer.log"),
              HasSubstr("job 'toy' is lost: its shards are gone with the memory of worker 'w'"));
  Delete();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

// Whether the coordinator takes the frozen worker for silent before the job is deleted, or not.
class RecreatedTest : public AbsenceTest, public testing::WithParamInterface<bool> {};

TEST_P(RecreatedTest, JobMadeAnewWhileItsWorkerWasFrozenHasNothingOfTheOldOne) {
  ASSERT_FALSE(UndisturbedModel().empty());
  if (GetParam()) worker_timeout_ = absl::Milliseconds(500);
  StartHalfRun();
  worker_->Kill(SIGSTOP);
  if (GetParam()) AwaitState(v1::JOB_STATE_WAITING);
  Delete();
  std::vector<std::unique_ptr<demo::ChildProcess>> old = std::exchange(trainers_, {});
  pause_at_ = 0;
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  ASSERT_TRUE(Eventually([&] {
    return GetJob({coordinator_address()}, "toy", absl::Now() + absl::Seconds(10)).ok();
  }));
  worker_->Kill(SIGCONT);
  EXPECT_EQ(Finish(), UndisturbedModel());
  std::swap(old, trainers_);
  Resume();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(AwaitEnd(rank), 1) << "the deleted job trains nobody";
  }
  EXPECT_THAT(ReadFile(folder_ + "/trainer.log"), HasSubstr("CANCELLED"));
}

INSTANTIATE_TEST_SUITE_P(Silence, RecreatedTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "LongerThanTheTimeout" : "Short";
                         });

}  // namespace
}  // namespace tessera
