// One job on a worker, with real executors; the test is the coordinator and the trainer.
#include "worker/keeper/hosted_job.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/no_more_threads.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"
#include "worker/keeper/attach_table.h"
#include "worker/keeper/hosted_job_fixture.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using HostedJobTest = HostedJobFixture;

// Executors of threads whose end nobody sees before `may_end`.
class UndyingLauncher : public ExecutorLauncher {
 public:
  // Executors may outlive the test's body, which ends with the job.
  explicit UndyingLauncher(std::shared_ptr<absl::Notification> may_end)
      : may_end_(std::move(may_end)) {}
  absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                          const std::string& label) override {
    UniqueFd other(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    ASSIGN_OR_RETURN(auto thread, threads_->Launch(std::move(socket), label));
    return std::make_unique<Undying>(std::move(thread), std::move(other), may_end_);
  }
  std::string name() const override { return "the undying"; }

 private:
  class Undying : public RunningExecutor {
   public:
    Undying(std::unique_ptr<RunningExecutor> thread, UniqueFd socket,
            std::shared_ptr<absl::Notification> may_end)
        : thread_(std::move(thread)), socket_(std::move(socket)), may_end_(std::move(may_end)) {}
    int pid() const override { return thread_->pid(); }
    void Kill() override { shutdown(socket_.get(), SHUT_RDWR); }
    std::string Wait() override { return thread_->Wait(); }
    bool EndsWithin(absl::Duration patience) override {
      return may_end_->WaitForNotificationWithTimeout(patience);
    }
    std::string Describe() const override { return "process 7, state D (disk sleep)"; }

   private:
    const std::unique_ptr<RunningExecutor> thread_;
    const UniqueFd socket_;
    const std::shared_ptr<absl::Notification> may_end_;
  };
  const std::unique_ptr<ExecutorLauncher> threads_ = NewThreadLauncher();
  const std::shared_ptr<absl::Notification> may_end_;
};

TEST_F(HostedJobTest, ExecutorThatDoesNotDieIsToldWithItsStateAndTheNextFollowsItsEnd) {
  const auto may_end = std::make_shared<absl::Notification>();
  Host(std::make_unique<UndyingLauncher>(may_end), 1, absl::Milliseconds(20));
  ASSERT_OK(created_);
  Start(1);
  ControlPage* page = job_->regions().control(Rank(0));
  const auto what = [] { return std::string("the executor"); };
  ASSERT_OK(AwaitEvent(page, 1, absl::Now() + kDeadline, what, [&] { return page->epoch == 1; }));
  job_->KillExecutor(Rank(0));
  const char reason[] =
      "the executor of rank 0 was killed and does not end: process 7, state D (disk sleep)";
  EXPECT_EQ(Await(v1::WorkerEvent::kFailure).failure().reason(), reason);
  EXPECT_THAT(AwaitEvent(page, 1, absl::Now() + kDeadline, what, [] { return false; }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr(reason)))
      << "of its trainer";
  Prepare(2);
  EXPECT_EQ(Await(v1::WorkerEvent::kFailure).failure().reason(), reason) << "the next one, too";
  may_end->Notify();
  Prepare(3);
  EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), 3);
}

TEST_F(HostedJobTest, ExecutorThatCannotTakeWhatItNeedsSaysWhyBeforeItEnds) {
  ExecutorMachine machine;
  machine.make_device = [](const DeviceName&) -> absl::StatusOr<std::unique_ptr<RankDevice>> {
    return absl::ResourceExhaustedError("there is no such room here");
  };
  Host(NewThreadLauncher(machine), 1);
  ASSERT_OK(created_);
  Prepare(1);
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              AllOf(HasSubstr("the executor of rank 0"),
                    HasSubstr("as it started: there is no such room here")));
}

TEST_F(HostedJobTest, ExecutorsThatEndAtOnceAreLaunchedEverLaterAndTheCoordinatorHearsHowTheyEnd) {
  Host(NewProcessLauncher("/bin/false", {}), 2);
  ASSERT_OK(created_);
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    Prepare(epoch);
    const v1::RankFailure failure = Await(v1::WorkerEvent::kFailure).failure();
    EXPECT_EQ(failure.epoch(), epoch);
    EXPECT_THAT(failure.reason(),
                AllOf(HasSubstr("(/bin/false) ended"), HasSubstr("times before it was ready"),
                      HasSubstr("exit status 1")));
  }
  EXPECT_LE(launcher_->launches(), 10);
  const int launches = launcher_->launches();
  job_.reset();  // Does not wait for the next ones.
  EXPECT_EQ(launcher_->launches(), launches);
}

TEST_F(HostedJobTest, ProgressOfAnEarlierEpochIsNotToldAsThatOfTheNext) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ControlPage* page = job_->regions().control(Rank(0));
  const auto what = [] { return std::string("the executor"); };
  ASSERT_OK(AwaitEvent(page, 1, absl::Now() + kDeadline, what, [&] { return page->epoch == 1; }));
  page->progress_step.store(3);
  page->progress_sequence.store(7);
  EXPECT_EQ(job_->Progress().ranks().at(0).step(), 3);
  EXPECT_EQ(job_->Progress().ranks().at(0).sequence(), 7);
  Prepare(2);
  EXPECT_EQ(job_->Progress().epoch(), 2);
  EXPECT_EQ(job_->Progress().ranks().at(0).step(), 0);
  EXPECT_EQ(job_->Progress().ranks().at(0).sequence(), 0);
}

TEST_F(HostedJobTest, BinaryThatVanishedIsNamedToTheCoordinator) {
  Host(NewProcessLauncher("/nonexistent/tessera-executor", {}), 1);
  ASSERT_OK(created_);
  Prepare(1);
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              AllOf(HasSubstr("ended 3 times"), HasSubstr("NOT_FOUND"),
                    HasSubstr("/nonexistent/tessera-executor")));
}

TEST_F(HostedJobTest, TrainerThatRecoversFromAFailedEpochLearnsThatTheJobEnds) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK_AND_ASSIGN(const GivenRank given, Attach());
  const Incarnation attachment(given.response.attachment());
  ASSERT_OK_AND_ASSIGN(const Mapping mapping,
                       Mapping::CreateWhole(given.fds[2].get(), Access::kReadWrite));
  auto* page = reinterpret_cast<ControlPage*>(mapping.data());
  job_->Detach(Rank(0), attachment, Leaving::kDied);
  const auto never = [] { return false; };
  const auto what = [] { return std::string("the epoch's end"); };
  ASSERT_THAT(AwaitEvent(page, 1, absl::Now() + kDeadline, what, never),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the trainer of rank 0 died")));
  job_.reset();
  EXPECT_THAT(AwaitEvent(page, 1, absl::Now() + kDeadline, what, never),
              StatusIs(absl::StatusCode::kCancelled, "job 'toy' ends on this worker"));
}

// Rank 0's page, once its executor has opened epoch 1.
ControlPage* AwaitFirstEpoch(const HostedJob& job, absl::Duration timeout) {
  ControlPage* page = job.regions().control(Rank(0));
  EXPECT_OK(AwaitEvent(
      page, 1, absl::Now() + timeout, [] { return std::string("the executor"); },
      [&] { return page->epoch.load() == 1; }));
  return page;
}

TEST_F(HostedJobTest, AttachingWithinAStepEndsTheEpochButNotWhereThePageIsOfAnEarlierOne) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ControlPage* page = AwaitFirstEpoch(*job_, kDeadline);
  page->within_step.store(1);  // Left by a trainer that died.
  page->epoch.store(0);        // As while the executor is given its values.
  ASSERT_OK_AND_ASSIGN(const GivenRank given, Attach());
  job_->Detach(Rank(0), Incarnation(given.response.attachment()), Leaving::kDone);
  page->epoch.store(1);
  EXPECT_THAT(Attach(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("try again")));
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("left in the middle of a step"));
}

TEST(HasBegunStepTest, OperationThatTheExecutorHasNotTakenYetCountsIfItBeginsAStepOfThisEpoch) {
  const auto page = std::make_unique<ControlPage>();
  page->epoch.store(2);
  page->consumed.store(0xffffffff);  // The counters wrap around.
  page->submitted.value.store(1);
  EXPECT_FALSE(HasBegunStep(*page));
  Op& op = page->ring[0];
  op.epoch = 2;
  for (const OpKind kind : {OpKind::kUnshard, OpKind::kReduce, OpKind::kWriteGradient}) {
    op.kind = kind;
    EXPECT_TRUE(HasBegunStep(*page)) << OpName(kind);
  }
  for (const OpKind kind : {OpKind::kReshard, OpKind::kStep, OpKind::kDropGradients}) {
    op.kind = kind;
    EXPECT_FALSE(HasBegunStep(*page)) << OpName(kind);
  }
  op.kind = OpKind::kUnshard;
  op.epoch = 1;
  EXPECT_FALSE(HasBegunStep(*page)) << "the executor drops what is of an earlier epoch";
  op.epoch = 2;
  page->consumed.store(1);
  EXPECT_FALSE(HasBegunStep(*page));
  page->within_step.store(1);
  EXPECT_TRUE(HasBegunStep(*page));
}

TEST_F(HostedJobTest, DeathOfATrainerInASaveEndsNoEpoch) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ControlPage* page = AwaitFirstEpoch(*job_, kDeadline);
  ASSERT_OK_AND_ASSIGN(const GivenRank given, Attach());
  page->progress_kind.store(static_cast<uint32_t>(OpKind::kSave));
  job_->Detach(Rank(0), Incarnation(given.response.attachment()), Leaving::kDied);
  ASSERT_OK_AND_ASSIGN(const GivenRank next, Attach());
  EXPECT_EQ(page->failed_epoch.load(), 0);
  page->within_step.store(1);
  job_->Detach(Rank(0), Incarnation(next.response.attachment()), Leaving::kDied);
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("the trainer of rank 0 died"));
}

TEST_F(HostedJobTest, TrainerIsGivenParametersForReadingAndItsOwnMemoryForWriting) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  ASSERT_OK_AND_ASSIGN(const GivenRank given, Attach());
  ASSERT_EQ(given.fds.size(), 3);
  EXPECT_FALSE(Mapping::CreateWhole(given.fds[0].get(), Access::kReadWrite).ok());
  EXPECT_OK(Mapping::CreateWhole(given.fds[0].get(), Access::kReadOnly));
  EXPECT_OK(Mapping::CreateWhole(given.fds[1].get(), Access::kReadWrite));
  EXPECT_OK(Mapping::CreateWhole(given.fds[2].get(), Access::kReadWrite));
  struct stat info;
  ASSERT_EQ(fstat(given.fds[0].get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600) << "so that no other user opens it again for writing";
}

TEST_F(HostedJobTest, TrainerOfAnotherUserNeedsTheKeyAndHostsNoExecutor) {
  description_.set_attach_key("the key");
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  const auto attach = [&](const std::string& key, bool hosts) {
    v1::AttachRequest request;
    request.set_job_id("toy");
    request.set_world_size(1);
    request.set_layout_digest(LayoutDigest(job_->regions().layout()));
    request.set_attach_key(key);
    request.set_hosts_executor(hosts);
    return job_->Attach(request, {kTrainerPid, geteuid() + 1}, absl::Now()).status();
  };
  for (const char* key : {"", "the keY", "the key "}) {
    EXPECT_THAT(attach(key, false), StatusIs(absl::StatusCode::kPermissionDenied,
                                             AllOf(HasSubstr("job 'toy'"), HasSubstr("the key"))));
  }
  EXPECT_THAT(attach("the key", true),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("host_executor")));
  EXPECT_OK(attach("the key", false));
}

TEST_F(HostedJobTest, JobWithoutAKeyIsForItsWorkersUserAlone) {
  Host(NewThreadLauncher(), 1);
  ASSERT_OK(created_);
  Start(1);
  v1::AttachRequest request;
  request.set_world_size(1);
  request.set_layout_digest(LayoutDigest(job_->regions().layout()));
  EXPECT_THAT(job_->Attach(request, {kTrainerPid, geteuid() + 1}, absl::Now()).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("or none")));
}

TEST_F(HostedJobTest, MachineWithoutMoreThreadsHostsNoJob) {
  const NoMoreThreads limit;
  Host(NewThreadLauncher(), 1);
  EXPECT_THAT(created_,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("job 'toy' rank 0")));
}

}  // namespace
}  // namespace tessera
