#include "client/units/forward_group.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ForwardGroupTest, OpensAtTheFirstAndClosesWhenEachModuleHasEnded) {
  ForwardGroup group(3);
  for (int forward = 0; forward < 2; ++forward) {
    EXPECT_TRUE(group.Begin());
    EXPECT_FALSE(group.End(2));
    EXPECT_FALSE(group.Begin());
    EXPECT_FALSE(group.Begin()) << "one inside of another";
    EXPECT_FALSE(group.End(0));
    EXPECT_TRUE(group.End(1));
  }
}

TEST(ForwardGroupTest, ModuleThatRunsTwiceCountsOnce) {
  ForwardGroup group(2);
  EXPECT_TRUE(group.Begin());
  EXPECT_FALSE(group.End(0));
  EXPECT_FALSE(group.Begin());
  EXPECT_FALSE(group.End(0));
  EXPECT_FALSE(group.Begin());
  EXPECT_TRUE(group.End(1));
}

TEST(ForwardGroupTest, ForgottenForwardBeginsAnew) {
  ForwardGroup group(2);
  EXPECT_TRUE(group.Begin());
  EXPECT_FALSE(group.End(0));
  group.Forget();
  EXPECT_TRUE(group.Begin());
  EXPECT_FALSE(group.End(1)) << "what ended before counts no more";
  EXPECT_TRUE(group.End(0));
}

TEST(ForwardGroupTest, OneModuleOpensAndClosesAtEachForwardAlsoAfterOneThatNeverEnded) {
  ForwardGroup group(1);
  EXPECT_TRUE(group.Begin());
  EXPECT_TRUE(group.Begin());
  EXPECT_TRUE(group.End(0));
  EXPECT_TRUE(group.Begin());
  EXPECT_TRUE(group.End(0));
}

}  // namespace
}  // namespace tessera
