#include "coordinator/core/straggler_watch.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Ranks that take steps together; each reports after every window.
class StragglerWatchTest : public ::testing::Test {
 protected:
  // Each step takes `wall_s`, of which rank i computes computes_s[i].
  void Report(const std::vector<double>& computes_s, double wall_s, int64_t num_steps) {
    if (totals_.empty()) totals_.resize(computes_s.size());
    step_ += num_steps;
    now_ += absl::Seconds(wall_s * static_cast<double>(num_steps));
    for (size_t rank = 0; rank < computes_s.size(); ++rank) {
      totals_[rank] += computes_s[rank] * static_cast<double>(num_steps);
      watch_.Heard(Rank(rank), Step(step_), totals_[rank], now_);
    }
  }
  // Of one full window.
  std::vector<StragglerWatch::Change> Window(const std::vector<double>& computes_s, double wall_s) {
    Report(computes_s, wall_s, StragglerWatch::kWindowSteps);
    EXPECT_TRUE(watch_.IsWindowFull());
    return watch_.EndWindow();
  }

  StragglerWatch watch_{4};
  std::vector<double> totals_;
  int64_t step_ = 100;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(StragglerWatchTest, RankThatComputesLongerInTwoWindowsInARowIsSlowWithItsShare) {
  Report({0, 0, 0, 0}, 0, 0);
  EXPECT_THAT(Window({0.4, 0.4, 0.41, 0.72}, 0.9), IsEmpty()) << "one window says nothing";
  const auto changes = Window({0.4, 0.4, 0.41, 0.72}, 0.9);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, Rank(3));
  EXPECT_TRUE(changes[0].is_slow);
  EXPECT_NEAR(absl::ToDoubleSeconds(changes[0].compute), 0.72, 1e-6);
  EXPECT_NEAR(absl::ToDoubleSeconds(changes[0].median), 0.4, 1e-6);
  EXPECT_NEAR(absl::ToDoubleSeconds(changes[0].step), 0.9, 1e-6);
  EXPECT_THAT(Window({0.4, 0.4, 0.41, 0.72}, 0.9), IsEmpty()) << "once";
}

TEST_F(StragglerWatchTest, WindowsThatAreNotInARowDoNotCount) {
  Report({0, 0, 0, 0}, 0, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(Window({0.4, 0.4, 0.4, 0.8}, 0.9), IsEmpty());
    EXPECT_THAT(Window({0.4, 0.4, 0.4, 0.4}, 0.9), IsEmpty());
  }
}

TEST_F(StragglerWatchTest, SlowRankEndsToBeAfterTwoWindowsInARow) {
  Report({0, 0, 0, 0}, 0, 0);
  Window({0.4, 0.4, 0.4, 0.8}, 0.9);
  ASSERT_THAT(Window({0.4, 0.4, 0.4, 0.8}, 0.9), SizeIs(1));
  EXPECT_THAT(Window({0.4, 0.4, 0.4, 0.4}, 0.5), IsEmpty());
  const auto changes = Window({0.4, 0.4, 0.4, 0.4}, 0.5);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, Rank(3));
  EXPECT_FALSE(changes[0].is_slow);
}

TEST_F(StragglerWatchTest, RankBelowOneAndAHalfTimesTheMedianIsNotSlow) {
  Report({0, 0, 0, 0}, 0, 0);
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Window({0.4, 0.4, 0.4, 0.59}, 0.7), IsEmpty());
}

TEST_F(StragglerWatchTest, RankWhoseExcessIsASmallPartOfTheStepIsNotSlow) {
  Report({0, 0, 0, 0}, 0, 0);
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Window({0.01, 0.01, 0.01, 0.09}, 0.9), IsEmpty());
}

TEST_F(StragglerWatchTest, WindowIsFullOnceEachRankHasReportedTwentySteps) {
  Report({0, 0, 0, 0}, 0, 0);
  Report({0.1, 0.1, 0.1, 0.1}, 0.2, 19);
  EXPECT_FALSE(watch_.IsWindowFull());
  for (int rank = 0; rank < 3; ++rank)
    watch_.Heard(Rank(rank), Step(step_ + 1), 2.0, now_ + absl::Seconds(1));
  EXPECT_FALSE(watch_.IsWindowFull()) << "rank 3 is at its 19th step";
  watch_.Heard(Rank(3), Step(step_ + 1), 2.0, now_ + absl::Seconds(1));
  EXPECT_TRUE(watch_.IsWindowFull());
  watch_.EndWindow();
  EXPECT_FALSE(watch_.IsWindowFull());
}

TEST_F(StragglerWatchTest, ValuesThatCannotBeAreIgnored) {
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 1);
  const double kBad[] = {std::nan(""), -1.0, std::numeric_limits<double>::infinity(), 1e300};
  for (const double bad : kBad) watch_.Heard(Rank(3), Step(step_ + 50), bad, now_);
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 19);
  EXPECT_FALSE(watch_.IsWindowFull());
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 1);
  EXPECT_TRUE(watch_.IsWindowFull());
  EXPECT_THAT(watch_.EndWindow(), IsEmpty());
}

TEST_F(StragglerWatchTest, SumThatShrinksBeginsTheRanksWindowAgain) {
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 1);
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 20);
  EXPECT_TRUE(watch_.IsWindowFull());
  totals_[3] = 0;
  watch_.Heard(Rank(3), Step(step_), 0, now_);
  EXPECT_FALSE(watch_.IsWindowFull());
  Report({0.4, 0.4, 0.4, 0.4}, 0.9, 20);
  EXPECT_TRUE(watch_.IsWindowFull());
  EXPECT_THAT(watch_.EndWindow(), IsEmpty());
}

TEST_F(StragglerWatchTest, NoRankComputesLongerThanItsStepsTake) {
  Report({0, 0, 0, 0}, 0, 0);
  Window({0.1, 0.1, 0.1, 1e6}, 0.9);
  const auto changes = Window({0.1, 0.1, 0.1, 1e6}, 0.9);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(changes[0].compute), 0.9, 1e-6);
}

TEST_F(StragglerWatchTest, RanksThatAllAreSlowAreNot) {
  Report({0, 0, 0, 0}, 0, 0);
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Window({0.9, 0.9, 0.9, 0.9}, 1.0), IsEmpty());
}

TEST(StragglerWatchOfTwoTest, FasterOneOfTwoIsTheMedian) {
  StragglerWatch watch(2);
  std::vector<StragglerWatch::Change> changes;
  for (int i = 0; i <= 2; ++i) {
    const absl::Time now = absl::UnixEpoch() + absl::Seconds(20 * i);
    watch.Heard(Rank(0), Step(20 * i), 0.3 * 20 * i, now);
    watch.Heard(Rank(1), Step(20 * i), 0.6 * 20 * i, now);
    if (watch.IsWindowFull()) changes = watch.EndWindow();
  }
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, Rank(1));
}

TEST(StragglerWatchOfOneTest, HasNoWindow) {
  StragglerWatch watch(1);
  watch.Heard(Rank(0), Step(0), 0, absl::UnixEpoch());
  watch.Heard(Rank(0), Step(100), 10, absl::UnixEpoch() + absl::Seconds(100));
  EXPECT_FALSE(watch.IsWindowFull());
}

}  // namespace
}  // namespace tessera::coordinator
