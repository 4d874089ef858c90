// What a keeper does with the generations of one job id, with executors as threads. The test is the
// coordinator.
#include "worker/keeper/keeper.h"

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"
#include "shm/local_messages.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);

class KeeperTest : public testing::Test {
 protected:
  void TearDown() override { keeper_.Shutdown(); }

  static ModelSpec Model(int64_t num_elements) {
    ModelSpec model;
    model.units = {{"u", {{"w", {num_elements}, DType::kFp32}}}};
    return model;
  }
  void Emit(const v1::WorkerEvent& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  // Waits for the next answer to a Prepare, or a failure.
  v1::WorkerEvent Answer() {
    v1::WorkerEvent found;
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      while (!events_.empty() && !found.has_prepared() && !found.has_failure()) {
        found = events_.front();
        events_.erase(events_.begin());
      }
      return found.has_prepared() || found.has_failure();
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kDeadline));
    return found;
  }
  void Prepare(int64_t generation, int64_t epoch, int64_t num_elements = 64, int64_t deleted = 0) {
    v1::CoordinatorCommand command;
    command.mutable_prepare()->set_deleted_generation(deleted);
    v1::Job* job = command.mutable_prepare()->mutable_job();
    job->set_job_id("toy");
    job->set_generation(generation);
    job->set_epoch(epoch);
    *job->mutable_model() = EncodeModel(Model(num_elements));
    *job->mutable_config() = EncodeJobConfig(JobConfig());
    job->add_placements()->set_worker_id("w");
    keeper_.HandleCommand(command);
  }
  void Start(int64_t generation, int64_t epoch) {
    v1::CoordinatorCommand command;
    command.mutable_start()->set_job_id("toy");
    command.mutable_start()->set_generation(generation);
    command.mutable_start()->set_epoch(epoch);
    keeper_.HandleCommand(command);
  }
  void Drop(int64_t generation) {
    v1::CoordinatorCommand command;
    command.mutable_drop()->set_job_id("toy");
    command.mutable_drop()->set_generation(generation);
    keeper_.HandleCommand(command);
  }
  absl::StatusOr<AttachedTrainer> Attach(int64_t generation) {
    v1::AttachRequest request;
    request.set_job_id("toy");
    request.set_generation(generation);
    request.set_world_size(1);
    ASSIGN_OR_RETURN(const ModelLayout layout,
                     ModelLayout::Create(Model(64), JobConfig().layout, 1));
    request.set_layout_digest(LayoutDigest(layout));
    return keeper_.Attach(request, {getpid(), geteuid()});
  }

  absl::Mutex mu_;
  std::vector<v1::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<ExecutorLauncher> launcher_ = NewThreadLauncher();
  Keeper keeper_{"w", "", launcher_.get(), [this](const v1::WorkerEvent& event) { Emit(event); }};
};

TEST_F(KeeperTest, JobThatWasMadeAnewGetsMemoryOfItsOwn) {
  Prepare(/*generation=*/5, /*epoch=*/1);
  ASSERT_TRUE(Answer().has_prepared());
  // As if it had been trained: five steps are decided.
  keeper_.Find("toy")->regions().group()->decided_step.store(5);
  Prepare(5, 2);
  EXPECT_EQ(Answer().prepared().decided_step(), 5);

  Prepare(/*generation=*/9, /*epoch=*/3, /*num_elements=*/4096);
  const v1::WorkerEvent answer = Answer();
  EXPECT_EQ(answer.prepared().generation(), 9);
  EXPECT_EQ(answer.prepared().epoch(), 3);
  EXPECT_EQ(answer.prepared().decided_step(), 0) << "nothing is left of the deleted one";
  EXPECT_EQ(keeper_.Find("toy")->regions().layout().units[0].flat.end_elements(), 4096);
  ASSERT_EQ(keeper_.Progress().jobs_size(), 1);
  EXPECT_EQ(keeper_.Progress().jobs(0).generation(), 9);
}

TEST_F(KeeperTest, JobWithValuesThatNobodyDeletedIsKeptWhereAnotherOneIsToTakeItsPlace) {
  Prepare(/*generation=*/5, /*epoch=*/1);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 1);
  Prepare(/*generation=*/9, /*epoch=*/1);
  v1::WorkerEvent answer = Answer();
  EXPECT_EQ(answer.failure().generation(), 9);
  EXPECT_THAT(answer.failure().reason(), HasSubstr("it holds job 'toy' of generation 5"));
  EXPECT_EQ(keeper_.Progress().jobs(0).generation(), 5);
  Prepare(9, /*epoch=*/2, 64, /*deleted=*/5);
  EXPECT_EQ(Answer().prepared().generation(), 9);
}

TEST_F(KeeperTest, OneThatAnotherJobOfItsNameKeepsFromItsPlaceIsToldWhateverTheEpochs) {
  Prepare(/*generation=*/5, /*epoch=*/8);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 8);
  for (const int64_t generation : {9, 3}) {
    Prepare(generation, /*epoch=*/1);
    const v1::WorkerEvent answer = Answer();
    EXPECT_EQ(answer.failure().generation(), generation);
    EXPECT_THAT(answer.failure().reason(), HasSubstr("it holds job 'toy' of generation 5"));
    EXPECT_EQ(keeper_.Progress().jobs(0).generation(), 5);
  }
}

TEST_F(KeeperTest, EndOfALaterJobOfTheNameDropsNoEarlierOne) {
  Prepare(/*generation=*/5, /*epoch=*/1);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 1);
  Prepare(/*generation=*/9, /*epoch=*/1);
  ASSERT_TRUE(Answer().has_failure());
  Drop(9);  // Its ranks go elsewhere.
  ASSERT_NE(keeper_.Find("toy"), nullptr);
  EXPECT_EQ(keeper_.Find("toy")->generation(), 5);
  Drop(5);
  EXPECT_EQ(keeper_.Find("toy"), nullptr);
}

TEST_F(KeeperTest, RepeatOfACommandWhoseEpochHasBegunVoidsNothing) {
  Prepare(5, /*epoch=*/4);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 4);
  v1::CoordinatorCommand command;
  *command.mutable_prepare()->mutable_job() = keeper_.Find("toy")->Describe().job();
  command.mutable_prepare()->set_discards_state(true);
  const std::shared_ptr<HostedJob> held = keeper_.Find("toy");
  keeper_.HandleCommand(command);
  EXPECT_EQ(keeper_.Find("toy"), held);
}

TEST_F(KeeperTest, CommandOfAnEarlierEpochVoidsNothing) {
  Prepare(5, /*epoch=*/4);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 4);
  v1::CoordinatorCommand command;
  *command.mutable_prepare()->mutable_job() = keeper_.Find("toy")->Describe().job();
  command.mutable_prepare()->mutable_job()->set_epoch(2);
  command.mutable_prepare()->set_discards_state(true);
  const std::shared_ptr<HostedJob> held = keeper_.Find("toy");
  keeper_.HandleCommand(command);
  EXPECT_EQ(keeper_.Find("toy"), held);
  EXPECT_EQ(held->epoch(), Epoch(4));
}

TEST_F(KeeperTest, DescribesAllThatACoordinatorNeedsToTakeTheJobOver) {
  Prepare(5, 1);
  ASSERT_TRUE(Answer().prepared().holds_nothing()) << "the job is new to it";
  Start(5, 1);
  keeper_.Find("toy")->regions().group()->decided_step.store(3);
  Prepare(5, 2);
  EXPECT_FALSE(Answer().prepared().holds_nothing());
  v1::CoordinatorCommand command;
  command.mutable_describe()->set_job_id("toy");
  command.mutable_describe()->set_generation(5);
  keeper_.HandleCommand(command);
  absl::MutexLock lock(&mu_);
  ASSERT_FALSE(events_.empty());
  const v1::HeldJob& held = events_.back().held();
  EXPECT_EQ(held.job().job_id(), "toy");
  EXPECT_EQ(held.job().epoch(), 2);
  EXPECT_EQ(held.job().model().units_size(), 1);
  EXPECT_EQ(held.job().placements(0).worker_id(), "w");
  EXPECT_EQ(held.decided_step(), 3);
  EXPECT_TRUE(held.has_begun());
}

TEST_F(KeeperTest, WhatIsMeantForADeletedJobDoesNotReachTheNewOne) {
  Prepare(9, 1);
  ASSERT_TRUE(Answer().has_prepared());
  Drop(5);
  Prepare(5, 7);
  ASSERT_NE(keeper_.Find("toy"), nullptr);
  EXPECT_EQ(keeper_.Progress().jobs(0).generation(), 9);
  EXPECT_EQ(keeper_.Progress().jobs(0).epoch(), 1);
  Start(5, 1);
  EXPECT_EQ(Answer().failure().generation(), 5);
  EXPECT_THAT(Attach(9), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("prepared")));
  Start(9, 1);
  ASSERT_OK_AND_ASSIGN(const AttachedTrainer attached, Attach(9));
  EXPECT_EQ(attached.generation, 9);
  Drop(9);
  EXPECT_EQ(keeper_.Find("toy"), nullptr);
}

TEST_F(KeeperTest, TrainerOfAnotherGenerationIsRefused) {
  Prepare(9, 1);
  ASSERT_TRUE(Answer().has_prepared());
  Start(9, 1);
  EXPECT_THAT(Attach(5), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("job 'toy' was deleted and created again")));
  EXPECT_THAT(Attach(11), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("try again")));
}

TEST_F(KeeperTest, EndOfADeletedJobsTrainerIsNoneOfTheNewOnes) {
  Prepare(5, 1);
  ASSERT_TRUE(Answer().has_prepared());
  Start(5, 1);
  ASSERT_OK_AND_ASSIGN(const AttachedTrainer old, Attach(5));
  Prepare(9, 1, 64, /*deleted=*/5);
  ASSERT_TRUE(Answer().has_prepared());
  Start(9, 1);
  ASSERT_OK_AND_ASSIGN(const AttachedTrainer current, Attach(9));
  EXPECT_EQ(old.attachment, current.attachment) << "told apart by the job alone";
  keeper_.Detach(old, Leaving::kDied);
  EXPECT_THAT(Attach(9), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 0")));
}

TEST_F(KeeperTest, RefusalsSayWhetherToTryAgain) {
  EXPECT_EQ(RetryOf(Attach(9).status()), v1::RETRY_SOON) << "it may hear of the job yet";
  Prepare(9, 1);
  ASSERT_TRUE(Answer().has_prepared());
  EXPECT_EQ(RetryOf(Attach(9).status()), v1::RETRY_SOON) << "it is prepared";
  Start(9, 1);
  EXPECT_EQ(RetryOf(Attach(11).status()), v1::RETRY_SOON) << "it may hear of the newer one yet";
  EXPECT_EQ(RetryOf(Attach(5).status()), v1::RETRY_NEVER);
  ASSERT_OK(Attach(9));
  EXPECT_EQ(RetryOf(Attach(9).status()), v1::RETRY_WHEN_FREE);
}

TEST_F(KeeperTest, StartOfAJobThatIsNotHereIsAnsweredSoThatItIsPreparedAnew) {
  Start(9, 4);
  const v1::RankFailure failure = Answer().failure();
  EXPECT_EQ(failure.generation(), 9);
  EXPECT_EQ(failure.epoch(), 4);
  EXPECT_EQ(failure.rank(), -1);
}

}  // namespace
}  // namespace tessera
