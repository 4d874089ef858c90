#include "job/reshard_after_forward.h"

#include "base/status_matchers.h"

namespace tessera {
namespace {

using testing::HasSubstr;

JobConfig Of(int world_size) {
  JobConfig config;
  config.world_size = world_size;
  config.reshard_group_size = 2;
  return config;
}

TEST(ReshardAfterForwardTest, TrueAndFalseAreStrategies) {
  JobConfig config = Of(4);
  SetReshardAfterForward(false, &config);
  EXPECT_EQ(config.strategy, Strategy::kShardGradOp);
  EXPECT_EQ(config.reshard_group_size, 0);
  SetReshardAfterForward(true, &config);
  EXPECT_EQ(config.strategy, Strategy::kFullShard);
}

TEST(ReshardAfterForwardTest, NumberIsAGroupOfRanksAndItsEndsAreTrueAndFalse) {
  JobConfig config = Of(8);
  ASSERT_OK(SetReshardAfterForward(4, &config));
  EXPECT_EQ(config.strategy, Strategy::kFullShard);
  EXPECT_EQ(config.reshard_group_size, 4);
  ASSERT_OK(SetReshardAfterForward(1, &config));
  EXPECT_EQ(config.strategy, Strategy::kShardGradOp);
  EXPECT_EQ(config.reshard_group_size, 0);
  ASSERT_OK(SetReshardAfterForward(8, &config));
  EXPECT_EQ(config.strategy, Strategy::kFullShard);
  EXPECT_EQ(config.reshard_group_size, 0);
}

TEST(ReshardAfterForwardTest, NumberThatDoesNotDivideTheWorldIsRefusedAndChangesNothing) {
  JobConfig config = Of(8);
  for (const int group : {-1, 0, 3, 16}) {
    EXPECT_THAT(SetReshardAfterForward(group, &config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world_size 8")));
    EXPECT_EQ(config.reshard_group_size, 2);
  }
}

}  // namespace
}  // namespace tessera
