// What a dump says of memory into which a trainer wrote what it liked.
#include "worker/service/rank_dump.h"

#include <algorithm>
#include <cstring>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(RankDumpTest, FailureThatIsNoTextIsEscapedAndTheDumpCanBeRead) {
  ModelSpec model;
  model.units = {{"u", {{"w", {64}, DType::kFp32}}}};
  v1::Job job;
  job.set_job_id("toy");
  *job.mutable_model() = EncodeModel(model);
  *job.mutable_config() = EncodeJobConfig(JobConfig());
  ASSERT_OK_AND_ASSIGN(const JobRegions regions, JobRegions::Create(job, LocalRanks()));
  ControlPage* page = regions.control(Rank(0));
  PublishFailure(page, 1, absl::AbortedError("a \xff\xe2\x82 b \x1b[2J \u20ac"));
  v1::DumpRankResponse read;
  ASSERT_TRUE(read.ParseFromString(DumpRank(regions, "toy", Rank(0)).SerializeAsString()));
  EXPECT_THAT(read.text(), HasSubstr("epoch 1: a \\xff\\xe2\\x82 b \\x1b[2J \u20ac\n"));
  memset(page->failure_message, 0xe2, kMaxErrorBytes);  // And no end.
  ASSERT_TRUE(read.ParseFromString(DumpRank(regions, "toy", Rank(0)).SerializeAsString()));
  EXPECT_THAT(read.text(), HasSubstr("\\xe2\\xe2"));
}

TEST(RankDumpTest, StepsAreThoseOfTheRankAlsoWhereOtherWorkersHaveTheFirstRanks) {
  ModelSpec model;
  model.units = {{"u", {{"w", {64}, DType::kFp32}}}};
  JobConfig config;
  config.world_size = 2;
  v1::Job job;
  job.set_job_id("toy");
  *job.mutable_model() = EncodeModel(model);
  *job.mutable_config() = EncodeJobConfig(config);
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankPlacement* placement = job.add_placements();
    placement->set_rank(rank);
    placement->set_worker_id(rank == 0 ? "first" : "second");
  }
  ASSERT_OK_AND_ASSIGN(const LocalRanks local, LocalRanksOf(job, "second"));
  ASSERT_OK_AND_ASSIGN(const JobRegions regions, JobRegions::Create(job, local));
  PublishApplied(regions.group(), local.topology.LocalIndex(1), 7);
  EXPECT_THAT(DumpRank(regions, "toy", Rank(1)).text(), HasSubstr("applied step 7"));
}

TEST(RankDumpTest, TextHasOnlyTheOperationsThatNobodyHasTaken) {
  ModelSpec model;
  model.units = {{"u", {{"w", {64}, DType::kFp32}}}};
  v1::Job job;
  job.set_job_id("toy");
  *job.mutable_model() = EncodeModel(model);
  *job.mutable_config() = EncodeJobConfig(JobConfig());
  ASSERT_OK_AND_ASSIGN(const JobRegions regions, JobRegions::Create(job, LocalRanks()));
  ControlPage* page = regions.control(Rank(0));
  page->consumed.store(20);
  page->submitted.value.store(22);
  const std::string text = DumpRank(regions, "toy", Rank(0)).text();
  EXPECT_THAT(text, HasSubstr("operations: 22 submitted, 20 consumed"));
  EXPECT_THAT(text, HasSubstr("#20 pending"));
  EXPECT_THAT(text, HasSubstr("#21 pending"));
  EXPECT_THAT(text, testing::Not(HasSubstr("#19")));
  page->consumed.store(40);  // A trainer wrote what it liked: no more than the ring has.
  const std::string wrapped = DumpRank(regions, "toy", Rank(0)).text();
  EXPECT_LE(std::count(wrapped.begin(), wrapped.end(), '#'), kRingOps);
}

}  // namespace
}  // namespace tessera
