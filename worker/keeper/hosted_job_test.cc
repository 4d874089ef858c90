// One job on a worker, with real executors; the test is the coordinator and the trainer.
#include "worker/keeper/hosted_job.h"

#include <atomic>

#include "absl/time/clock.h"
#include "base/no_more_threads.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);

// Passes on to a real launcher and counts.
class CountingLauncher : public ExecutorLauncher {
 public:
  explicit CountingLauncher(std::unique_ptr<ExecutorLauncher> launcher)
      : launcher_(std::move(launcher)) {}
  absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                          const std::string& label) override {
    ++launches_;
    return launcher_->Launch(std::move(socket), label);
  }
  std::string name() const override { return launcher_->name(); }
  int launches() const { return launches_; }

 private:
  const std::unique_ptr<ExecutorLauncher> launcher_;
  std::atomic<int> launches_ = 0;
};

class HostedJobTest : public testing::Test {
 protected:
  void Host(std::unique_ptr<ExecutorLauncher> launcher, int world_size) {
    launcher_ = std::make_unique<CountingLauncher>(std::move(launcher));
    model_.units = {{"u", {{"w", {64}, DType::kFp32}}}};
    JobConfig config;
    config.world_size = world_size;
    description_.set_job_id("toy");
    *description_.mutable_model() = EncodeModel(model_);
    *description_.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < world_size; ++rank) {
      v1::RankPlacement* placement = description_.add_placements();
      placement->set_rank(rank);
      placement->set_worker_id("w");
    }
    LocalRanks local;
    local.topology = RankTopology::OneHost(world_size);
    auto job = HostedJob::Create(description_, local, "", launcher_.get(),
                                 [this](const v1::WorkerEvent& event) {
                                   absl::MutexLock lock(&mu_);
                                   events_.push_back(event);
                                 });
    created_ = job.status();
    if (job.ok()) job_ = *std::move(job);
  }
  void Prepare(int64_t epoch) {
    description_.set_epoch(epoch);
    v1::PrepareEpoch prepare;
    *prepare.mutable_job() = description_;
    job_->Prepare(prepare);
  }
  void Start(int64_t epoch) {
    Prepare(epoch);
    EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), epoch);
    v1::StartEpoch start;
    start.set_epoch(epoch);
    job_->Start(start);
  }
  // Waits for an event of this kind, and forgets all before it.
  v1::WorkerEvent Await(v1::WorkerEvent::EventCase kind) {
    v1::WorkerEvent found;
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      while (!events_.empty() && found.event_case() != kind) {
        found = events_.front();
        events_.erase(events_.begin());
      }
      return found.event_case() == kind;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kDeadline));
    return found;
  }

  ModelSpec model_;
  v1::Job description_;
  absl::Mutex mu_;
  std::vector<v1::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CountingLauncher> launcher_;
  absl::Status created_;
  std::unique_ptr<HostedJob> job_;
};

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
  v1::AttachRequest request;
  request.set_job_id("toy");
  request.set_world_size(1);
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       ModelLayout::Create(model_, JobConfig().layout, 1));
  request.set_layout_digest(LayoutDigest(layout));
  ASSERT_OK_AND_ASSIGN(const v1::AttachResponse attached, job_->Attach(request, absl::Now()));
  const Incarnation attachment(attached.attachment());
  ASSERT_OK_AND_ASSIGN(const std::vector<int> fds, job_->Claim(Rank(0), attachment, absl::Now()));
  ASSERT_OK_AND_ASSIGN(const Mapping mapping, Mapping::CreateWhole(fds[2], Access::kReadWrite));
  auto* page = reinterpret_cast<ControlPage*>(mapping.data());
  job_->Detach(Rank(0), attachment, /*clean=*/false);
  const auto never = [] { return false; };
  const auto what = [] { return std::string("the epoch's end"); };
  ASSERT_THAT(AwaitEvent(page, 1, absl::Now() + kDeadline, what, never),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the trainer of rank 0 died")));
  job_.reset();
  EXPECT_THAT(AwaitEvent(page, 1, absl::Now() + kDeadline, what, never),
              StatusIs(absl::StatusCode::kCancelled, "job 'toy' ends on this worker"));
}

TEST_F(HostedJobTest, MachineWithoutMoreThreadsHostsNoJob) {
  const NoMoreThreads limit;
  Host(NewThreadLauncher(), 1);
  EXPECT_THAT(created_,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("job 'toy' rank 0")));
}

}  // namespace
}  // namespace tessera
