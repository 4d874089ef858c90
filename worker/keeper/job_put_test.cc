#include "worker/keeper/job_put.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(JobPutTest, IsOverOnceItIsLeavingAndNoRankHasIt) {
  JobPut put;
  EXPECT_TRUE(put.IsOver(7));
  put.Begin(7);
  EXPECT_FALSE(put.IsOver(7)) << "the first rank may be given it at any moment";
  put.Given(0);
  put.Given(1);
  put.Gone(0, 7, "");  // It was decided there.
  EXPECT_TRUE(put.is_offered());
  put.Withdraw(8);
  EXPECT_TRUE(put.is_offered());
  put.Withdraw(7);
  EXPECT_FALSE(put.is_offered());
  EXPECT_FALSE(put.IsOver(7));
  put.Gone(1, 8, "");
  EXPECT_FALSE(put.IsOver(7));
  put.Gone(1, 7, "");
  EXPECT_TRUE(put.IsOver(7));
  EXPECT_EQ(put.failure(), "");
}

TEST(JobPutTest, RankThatFindsItVoidEndsItForAll) {
  JobPut put;
  put.Begin(7);
  put.Given(0);
  put.Given(1);
  put.Gone(1, 7, "changed on disk");
  EXPECT_FALSE(put.is_offered());
  EXPECT_FALSE(put.IsOver(7));
  EXPECT_EQ(put.failure(), "changed on disk");
  put.Ended(0);
  EXPECT_TRUE(put.IsOver(7));
}

TEST(JobPutTest, RankThatDiesWithItAgainAndAgainEndsIt) {
  JobPut put;
  put.Begin(7);
  for (int end = 1; end <= JobPut::kMaxEnds; ++end) {
    EXPECT_TRUE(put.is_offered());
    put.Ended(0);  // Without it: that counts for nothing.
    put.Given(0);
    put.Ended(0);
  }
  EXPECT_TRUE(put.IsOver(7));
  EXPECT_NE(put.failure(), "");
  put.Begin(8);
  EXPECT_TRUE(put.is_offered());
  EXPECT_TRUE(put.IsOver(7));
  EXPECT_EQ(put.failure(), "");
}

}  // namespace
}  // namespace tessera
