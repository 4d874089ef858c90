#include "client/session/missing_ranks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::Job RunningJob(int world_size) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_config()->set_world_size(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    v1::RankStatus& status = (*job.mutable_ranks())[rank];
    status.set_attached(true);
    status.set_step(3);
    status.set_sequence(7);
    status.set_doing("unshard blocks.2");
  }
  return job;
}

TEST(MissingRanksTest, RanksWithoutATrainerAreNamedWithWhatTheyDidLast) {
  v1::Job job = RunningJob(4);
  EXPECT_EQ(MissingRanks(job, 0), "");
  (*job.mutable_ranks())[2].set_attached(false);
  (*job.mutable_ranks())[1].set_sequence(2);  // Waits for rank 2 itself, perhaps.
  job.mutable_ranks()->erase(3);
  EXPECT_EQ(MissingRanks(job, 0),
            "rank 2 has no trainer, and was last at step 3 (unshard blocks.2); rank 3 has no "
            "trainer");
  EXPECT_EQ(MissingRanks(job, 2), "rank 3 has no trainer") << "the one that asks is there";
}

TEST(MissingRanksTest, WhereAllHaveTrainersThoseBehindAreNamed) {
  v1::Job job = RunningJob(3);
  (*job.mutable_ranks())[1].set_step(2);
  (*job.mutable_ranks())[2].set_step(4);
  EXPECT_EQ(MissingRanks(job, 0), "rank 1 is behind, at step 2 (unshard blocks.2)");
  job.set_state(v1::JOB_STATE_STARTING);  // The next epoch.
  (*job.mutable_ranks())[1] = job.ranks().at(0);
  (*job.mutable_ranks())[1].set_doing("idle");
  EXPECT_EQ(MissingRanks(job, 0), "rank 1 is behind, at step 3 (idle)") << "while 0 unshards";
}

TEST(MissingRanksTest, JobThatDoesNotRunSaysWhy) {
  v1::Job job = RunningJob(2);
  job.set_state(v1::JOB_STATE_WAITING);
  job.set_state_reason("for 2 devices");
  EXPECT_EQ(MissingRanks(job, 0), "the job is WAITING: for 2 devices");
}

TEST(MissingRanksTest, AllHaveTrainersWhereEachRankOfARunningJobHasOne) {
  v1::Job job = RunningJob(2);
  EXPECT_TRUE(AllHaveTrainers(job));
  job.set_state(v1::JOB_STATE_STARTING);
  EXPECT_FALSE(AllHaveTrainers(job));
  job.set_state(v1::JOB_STATE_RUNNING);
  (*job.mutable_ranks())[1].set_attached(false);
  EXPECT_FALSE(AllHaveTrainers(job));
  job.mutable_ranks()->erase(1);
  EXPECT_FALSE(AllHaveTrainers(job)) << "of a rank that nobody has heard of";
}

TEST(MissingRanksTest, ManyAreCounted) {
  v1::Job job = RunningJob(100);
  for (int rank = 1; rank < 100; ++rank) (*job.mutable_ranks())[rank].set_attached(false);
  EXPECT_THAT(MissingRanks(job, 0), testing::EndsWith("; and 91 more"));
}

}  // namespace
}  // namespace tessera
