// Executors in the processes of trainers, as the worker sees them: the test is the coordinator, the
// trainer and, in its process, the executor, real or not.
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "worker/executor/rank_executor.h"
#include "worker/keeper/hosted_job_fixture.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class HostedJobHostsTest : public HostedJobFixture {
 protected:
  absl::StatusOr<GivenRank> AttachAsHost() {
    ASSIGN_OR_RETURN(GivenRank given, Attach(/*hosts_executor=*/true));
    attachment_ = Incarnation(given.response.attachment());
    return given;
  }
  void ExpectPrepared(int64_t epoch) {
    Prepare(epoch);
    EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), epoch);
  }

  Incarnation attachment_;
};

TEST_F(HostedJobHostsTest, TrainersExecutorIsTakenInsteadOfOneThatIsLaunchedUntilItEnds) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK_AND_ASSIGN(GivenRank claim, AttachAsHost());
  EXPECT_EQ(claim.response.epoch(), 1) << "before its own first one";
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("the trainer of rank 0 hosts the rank's executor from now on"));
  absl::Status ended = absl::UnknownError("runs");
  std::thread trainer(
      [&] { ended = RunRankExecutor(std::move(claim.fds.back()), ExecutorMachine()); });
  Start(2);
  EXPECT_EQ(job_->Progress().ranks().at(0).executor_pid(), kTrainerPid);
  EXPECT_EQ(launcher_->launches(), 1);
  job_->KillExecutor(Rank(0));
  trainer.join();
  EXPECT_OK(ended);
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("the executor of rank 0 ended: in its trainer's process 4242"));
  ExpectPrepared(3);
  EXPECT_EQ(launcher_->launches(), 2);
  EXPECT_NE(job_->Progress().ranks().at(0).executor_pid(), kTrainerPid);
}

TEST_F(HostedJobHostsTest, TrainersThatDieBeforeTheirExecutorIsReadyCostNoDelayAndNoError) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  for (int64_t epoch = 1; epoch <= 8; ++epoch) {
    Start(epoch);
    EXPECT_EQ(launcher_->launches(), epoch) << "one for each that died";
    ASSERT_OK_AND_ASSIGN(GivenRank claim, AttachAsHost());
    EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(), HasSubstr("hosts"));
    if (epoch % 2 == 0) job_->Detach(Rank(0), attachment_, Leaving::kDied);
    claim.fds.back().Reset();
    job_->Detach(Rank(0), attachment_, Leaving::kDied);
  }
}

TEST_F(HostedJobHostsTest, ExecutorThatStandsStillIsToldToTheCoordinatorAndNoOtherTakesItsPlace) {
  Host(NewThreadLauncher(), 1, /*answer_timeout=*/absl::Milliseconds(50));
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK_AND_ASSIGN(GivenRank claim, AttachAsHost());
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(), HasSubstr("hosts"));
  for (int64_t epoch = 2; epoch <= 3; ++epoch) {
    Prepare(epoch);
    const v1::RankFailure failure = Await(v1::WorkerEvent::kFailure).failure();
    EXPECT_EQ(failure.epoch(), epoch);
    EXPECT_THAT(failure.reason(),
                AllOf(HasSubstr("the executor of rank 0, in its trainer's process"),
                      HasSubstr("did not answer within 50ms")));
  }
  // It could still write to the rank's memory once it resumes.
  job_->KillExecutor(Rank(0));
  Prepare(4);
  EXPECT_EQ(Await(v1::WorkerEvent::kFailure).failure().epoch(), 4);
  EXPECT_EQ(launcher_->launches(), 1);
  claim.fds.back().Reset();
  job_->Detach(Rank(0), attachment_, Leaving::kDied);
  ExpectPrepared(5);
  EXPECT_EQ(launcher_->launches(), 2);
}

TEST_F(HostedJobHostsTest, WhoIsNoExecutorIsSentAwayAndNothingThatItSaysCounts) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  v1::ExecutorEvent ready;
  ready.mutable_ready();
  int64_t epoch = 1;
  for (const std::string& nonsense : {std::string("\xff\xff\xff"), std::string(100'000, 'x')}) {
    Start(epoch++);
    const int launches = launcher_->launches();
    ASSERT_OK_AND_ASSIGN(GivenRank claim, AttachAsHost());
    EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(), HasSubstr("hosts"));
    const int socket = claim.fds.back().get();
    ASSERT_OK_AND_ASSIGN(const Packet setup, ReceivePacket(socket));
    EXPECT_THAT(setup.bytes, HasSubstr("setup of device -1"));
    ASSERT_EQ(send(socket, nonsense.data(), nonsense.size(), MSG_NOSIGNAL), nonsense.size());
    EXPECT_THAT(ReceivePacket(socket), StatusIs(absl::StatusCode::kUnavailable, testing::_));
    ASSERT_OK(SendPacket(socket, ready.SerializeAsString()));
    EXPECT_EQ(launcher_->launches(), launches);
    claim.fds.back().Reset();
    job_->Detach(Rank(0), attachment_, Leaving::kDied);
  }
  ExpectPrepared(epoch);
}

TEST_F(HostedJobHostsTest, JobEndsThoughAnExecutorStandsStill) {
  Host(NewThreadLauncher(), 1, /*answer_timeout=*/absl::Milliseconds(50));
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK_AND_ASSIGN(const GivenRank claim, AttachAsHost());
  ASSERT_OK(ReceivePacket(claim.fds.back().get()));  // The setup: it has the memory.
  job_.reset();
  EXPECT_THAT(ReceivePacket(claim.fds.back().get()),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(HostedJobHostsTest, SecondHostIsRefusedAndTheExecutorThatIsThereStays) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK(Attach());
  EXPECT_THAT(AttachAsHost(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 0")));
  EXPECT_EQ(launcher_->launches(), 1);
}

}  // namespace
}  // namespace tessera
