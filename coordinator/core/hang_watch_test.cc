#include "coordinator/core/hang_watch.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(30);

class HangWatchTest : public ::testing::Test {
 protected:
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  void Put(int rank, int64_t step, int64_t sequence, int64_t pass = 0) {
    watch_.Heard(Rank(rank), {Step(step), sequence, pass});
  }
  std::vector<Rank> MissingAt(double seconds) {
    return watch_.Look(At(seconds), kPatience).missing;
  }

  HangWatch watch_{3};
};

TEST_F(HangWatchTest, RankThatTheOthersPassedIsMissingAfterThePatienceAndNotBefore) {
  Put(0, 12, 7);
  Put(1, 12, 7);
  Put(2, 12, 6);
  EXPECT_THAT(MissingAt(100), IsEmpty());
  EXPECT_THAT(MissingAt(129.999), IsEmpty());
  EXPECT_FALSE(watch_.IsMissing(Rank(2)));
  EXPECT_THAT(MissingAt(130), ElementsAre(Rank(2)));
  EXPECT_TRUE(watch_.IsMissing(Rank(2)));
  EXPECT_THAT(MissingAt(500), IsEmpty()) << "once";
}

TEST_F(HangWatchTest, RanksThatAllAreAtOnePlaceAreNotMissing) {
  for (int rank = 0; rank < 3; ++rank) Put(rank, 12, 7);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(1000), IsEmpty());
}

TEST_F(HangWatchTest, PatienceBeginsWhenAnotherRankGoesOnNotWhenTheRankCameThere) {
  for (int rank = 0; rank < 3; ++rank) Put(rank, 12, 7);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  Put(0, 12, 8);
  EXPECT_THAT(MissingAt(1000), IsEmpty());
  EXPECT_THAT(MissingAt(1029), IsEmpty());
  EXPECT_THAT(MissingAt(1030), ElementsAre(Rank(1), Rank(2)));
}

TEST_F(HangWatchTest, RankThatMovesHasArrivedAndHasTheWholePatienceAgain) {
  Put(0, 12, 9);
  Put(1, 12, 9);
  Put(2, 12, 6);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(30), ElementsAre(Rank(2)));
  Put(2, 12, 7);
  const HangWatch::Found found = watch_.Look(At(40), kPatience);
  EXPECT_THAT(found.arrived, ElementsAre(Rank(2)));
  EXPECT_THAT(found.missing, IsEmpty());
  EXPECT_THAT(watch_.Look(At(41), kPatience).arrived, IsEmpty()) << "once";
  EXPECT_THAT(MissingAt(69), IsEmpty());
  EXPECT_THAT(MissingAt(70), ElementsAre(Rank(2))) << "behind at the next place";
}

TEST_F(HangWatchTest, RankThatMovesInTimeIsNeverMissing) {
  Put(0, 12, 9);
  Put(1, 12, 9);
  for (int i = 0; i < 9; ++i) {
    Put(2, 12, i);
    EXPECT_THAT(MissingAt(29 * i), IsEmpty());
  }
}

TEST_F(HangWatchTest, RankBetweenTheLastAndTheFirstMayWaitForTheLast) {
  Put(0, 12, 9);
  Put(1, 12, 8);
  Put(2, 12, 6);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(30), ElementsAre(Rank(2)));
  Put(2, 12, 9);
  EXPECT_THAT(MissingAt(31), IsEmpty());
  EXPECT_THAT(MissingAt(61), ElementsAre(Rank(1))) << "now it is the last";
}

// All ranks have voted for the step before, so that none waits for a vote of it.
TEST_F(HangWatchTest, RankIsNotMissingForOthersThatHaveOnlyBegunTheNextStep) {
  Put(0, 13, 0);
  Put(1, 13, 0);
  Put(2, 12, 40);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(1000), IsEmpty());
  Put(0, 13, 1);
  EXPECT_THAT(MissingAt(1001), IsEmpty());
  EXPECT_THAT(MissingAt(1031), ElementsAre(Rank(2)));
}

TEST_F(HangWatchTest, PassesOfAStepAreInOrder) {
  Put(0, 12, 0, /*pass=*/1);
  Put(1, 12, 5, /*pass=*/0);
  Put(2, 12, 0, /*pass=*/1);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(30), ElementsAre(Rank(1)));
}

TEST_F(HangWatchTest, RankThatNeverReportedIsBehindTheOthers) {
  Put(0, 12, 1);
  Put(1, 12, 1);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(30), ElementsAre(Rank(2)));
}

TEST_F(HangWatchTest, EarlierPlaceThanTheLastOneIsIgnored) {
  Put(0, 12, 7);
  Put(1, 12, 7);
  Put(2, 12, 7);
  Put(2, 12, 3);
  Put(2, 11, 40);
  Put(2, 0, 0);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(100), IsEmpty());
}

TEST_F(HangWatchTest, PauseOfTheCoordinatorIsNobodysDelay) {
  Put(0, 12, 7);
  Put(1, 12, 7);
  Put(2, 12, 6);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  watch_.Postpone(absl::Seconds(100));
  EXPECT_FALSE(watch_.IsDue(At(129.9)));
  EXPECT_THAT(MissingAt(129.9), IsEmpty());
  EXPECT_THAT(MissingAt(130), ElementsAre(Rank(2)));
}

TEST_F(HangWatchTest, RankThatIsForgivenHasTheWholePatienceAgain) {
  Put(0, 12, 7);
  Put(1, 12, 7);
  Put(2, 12, 6);
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_THAT(MissingAt(30), ElementsAre(Rank(2)));
  watch_.Forgive({Rank(2)}, At(30));
  EXPECT_FALSE(watch_.IsMissing(Rank(2)));
  EXPECT_THAT(MissingAt(59), IsEmpty());
  EXPECT_THAT(MissingAt(60), ElementsAre(Rank(2)));
}

// What keeps a tick cheap where nothing changes.
TEST_F(HangWatchTest, IsDueOnlyWhereARankMovedOrAPatienceEnds) {
  EXPECT_FALSE(watch_.IsDue(At(0)));
  for (int rank = 0; rank < 3; ++rank) Put(rank, 12, 7);
  EXPECT_TRUE(watch_.IsDue(At(0)));
  EXPECT_THAT(MissingAt(0), IsEmpty());
  EXPECT_FALSE(watch_.IsDue(At(100'000)));
  for (int rank = 0; rank < 3; ++rank) Put(rank, 12, 7);
  EXPECT_FALSE(watch_.IsDue(At(100'000))) << "they have said the same again";
  Put(0, 12, 8);
  EXPECT_TRUE(watch_.IsDue(At(100'000)));
  EXPECT_THAT(MissingAt(100'000), IsEmpty());
  EXPECT_FALSE(watch_.IsDue(At(100'029.9)));
  EXPECT_TRUE(watch_.IsDue(At(100'030)));
  EXPECT_THAT(MissingAt(100'030), ElementsAre(Rank(1), Rank(2)));
  EXPECT_FALSE(watch_.IsDue(At(200'000))) << "both are named";
}

TEST(HangWatchOfOneRankTest, IsNeverMissing) {
  HangWatch watch(1);
  watch.Heard(Rank(0), {Step(3), 5, 0});
  EXPECT_THAT(watch.Look(absl::UnixEpoch(), kPatience).missing, IsEmpty());
  EXPECT_THAT(watch.Look(absl::UnixEpoch() + absl::Hours(1), kPatience).missing, IsEmpty());
}

}  // namespace
}  // namespace tessera::coordinator
