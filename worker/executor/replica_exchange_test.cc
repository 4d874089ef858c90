#include "worker/executor/replica_exchange.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelLayout LayoutOf(int world_size, int group_size) {
  ModelSpec model;
  model.units.push_back({"root", {{"a", {5, 37}}, {"b", {7}}}});
  model.units.push_back({"u", {{"c", {64}}}});
  JobConfig config;
  config.world_size = world_size;
  config.strategy = group_size > 0 ? Strategy::kHybridShard : Strategy::kFullShard;
  config.shard_group_size = group_size;
  return *LayOut(model, config);
}

TEST(ReplicaDutiesTest, EachEmptyRankHasTheLowestOtherRankWithItsShards) {
  const ModelLayout layout = LayoutOf(6, 2);
  const std::set<int> rebuilt = {0, 1, 4, 5};
  for (int rank = 0; rank < 6; ++rank) {
    const auto duties = DutiesOf(rank, rebuilt, layout, 6);
    ASSERT_OK(duties);
    if (rank == 2 || rank == 3) {
      EXPECT_FALSE(duties->source.has_value());
      EXPECT_THAT(duties->targets, ElementsAre(rank - 2, rank + 2));
    } else {
      EXPECT_EQ(duties->source, 2 + rank % 2);
      EXPECT_THAT(duties->targets, IsEmpty());
    }
  }
}

TEST(ReplicaDutiesTest, WithoutARebuiltRankThereIsNothingToDo) {
  const auto duties = DutiesOf(1, {}, LayoutOf(4, 2), 4);
  ASSERT_OK(duties);
  EXPECT_FALSE(duties->source.has_value());
  EXPECT_THAT(duties->targets, IsEmpty());
}

TEST(ReplicaDutiesTest, ShardsThatNoOtherRankHasAreNamed) {
  EXPECT_THAT(DutiesOf(0, {1, 3}, LayoutOf(4, 2), 4).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 has lost")));
  EXPECT_THAT(DutiesOf(0, {3}, LayoutOf(4, 0), 4).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 3 has lost")));
  EXPECT_THAT(DutiesOf(0, {4}, LayoutOf(4, 2), 4).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no rank 4")));
}

}  // namespace
}  // namespace tessera
