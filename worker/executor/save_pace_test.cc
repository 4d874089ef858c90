#include "worker/executor/save_pace.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr absl::Duration kStep = absl::Seconds(2);

TEST(SavePaceTest, TakesAVersionEvenlyOverTheMostOfTheStepsThatItStands) {
  const SavePace pace(1000 * kMiB, kStep, 1.5);
  EXPECT_EQ(pace.NotBefore(0), absl::ZeroDuration());
  EXPECT_EQ(pace.NotBefore(500 * kMiB), absl::Seconds(1.5));
  EXPECT_EQ(pace.NotBefore(1000 * kMiB), absl::Seconds(3));
}

TEST(SavePaceTest, HoldsNothingBackWhereNoStepIsKnownNothingIsToBeTakenOrSomebodyWaits) {
  EXPECT_EQ(SavePace().NotBefore(5), absl::ZeroDuration());
  EXPECT_EQ(SavePace(1000, absl::ZeroDuration(), 1.5).NotBefore(999), absl::ZeroDuration());
  EXPECT_EQ(SavePace(0, kStep, 1.5).NotBefore(0), absl::ZeroDuration());
  EXPECT_EQ(SavePace(1000, kStep, 0).NotBefore(999), absl::ZeroDuration());
  SavePace hurried(1000 * kMiB, kStep, 1.5);
  hurried.Hurry();
  EXPECT_EQ(hurried.NotBefore(999 * kMiB), absl::ZeroDuration());
}

TEST(SavePaceTest, IsNoSlowerThanWhatCostsAStepNothingHoweverLongStepsAre) {
  const SavePace pace(10 * kFreeBytesPerSecond, absl::Hours(1), 1.5);
  EXPECT_EQ(pace.NotBefore(10 * kFreeBytesPerSecond), absl::Seconds(10));
  EXPECT_EQ(pace.NotBefore(1 * kFreeBytesPerSecond), absl::Seconds(1));
}

TEST(SavePaceTest, GoesOnByTheTimeThatTheStepBehindTheVersionTook) {
  SavePace pace(1000 * kMiB, kStep, 1.5);
  // Twice as fast as the step before.
  EXPECT_EQ(pace.StepVoted(absl::Seconds(1), 400 * kMiB, absl::Milliseconds(100)),
            absl::Seconds(1.5));
  EXPECT_EQ(pace.NotBefore(400 * kMiB), absl::Seconds(1));
  EXPECT_EQ(pace.NotBefore(700 * kMiB), absl::Seconds(1.25));
  EXPECT_EQ(pace.NotBefore(1000 * kMiB), absl::Seconds(1.5));
}

TEST(SavePaceTest, StepThatTookLongForOnceSaysNothingOfTheNext) {
  SavePace pace(1000 * kMiB, kStep, 1.5);
  EXPECT_EQ(pace.StepVoted(absl::Minutes(1), 900 * kMiB, absl::Seconds(3)), absl::Seconds(61));
  SavePace slow(1000 * kMiB, kStep, 1.5);  // 6.7 s for the rest.
  EXPECT_EQ(slow.StepVoted(absl::Minutes(1), 900 * kMiB, absl::Minutes(1)), absl::Minutes(1));
  SavePace unknown(1000 * kMiB, absl::ZeroDuration(), 1.5);
  EXPECT_EQ(unknown.StepVoted(absl::Seconds(2), 999 * kMiB, absl::Seconds(2)), absl::Seconds(2));
}

TEST(SavePaceTest, WhatWillNotBeTakenInTimeIsCopiedAtOnceAndTakenAsFastAsCanBe) {
  SavePace pace(1000 * kMiB, kStep, 1.5);
  // 0.45 s for the other half, and 0.5 s until it is wanted: no time to spare.
  EXPECT_EQ(pace.StepVoted(absl::Seconds(1), 500 * kMiB, absl::Milliseconds(450)),
            absl::Seconds(1));
  EXPECT_LE(pace.NotBefore(500 * kMiB), absl::Seconds(1));
  EXPECT_LE(pace.NotBefore(999 * kMiB), absl::Seconds(1));

  SavePace stuck(1000 * kMiB, kStep, 1.5);
  EXPECT_EQ(stuck.StepVoted(absl::Seconds(1), 0, absl::ZeroDuration()), absl::Seconds(1));
  // A save that was to be over within a step.
  SavePace late(1000 * kMiB, kStep, 0.8);
  EXPECT_EQ(late.StepVoted(absl::Seconds(2), 999 * kMiB, absl::Milliseconds(1)), absl::Seconds(2));
}

TEST(SavePaceTest, WhatWillBeTakenInFourFifthsOfTheTimeIsNotCopiedBefore) {
  SavePace pace(1000 * kMiB, kStep, 1.5);
  EXPECT_EQ(pace.StepVoted(absl::Seconds(1), 500 * kMiB, absl::Milliseconds(399)),
            absl::Seconds(1.5));
  EXPECT_EQ(pace.NotBefore(750 * kMiB), absl::Seconds(1.25));
}

TEST(SavePaceTest, WhoHurriesIsNotHeldBackByTheStepBehindButCopiedNoEarlierThanNeeded) {
  SavePace pace(1000 * kMiB, kStep, 1.5);
  pace.Hurry();
  EXPECT_EQ(pace.StepVoted(absl::Seconds(2), 900 * kMiB, absl::Milliseconds(100)),
            absl::Seconds(3));
  EXPECT_LE(pace.NotBefore(999 * kMiB), absl::Seconds(2));
}

}  // namespace
}  // namespace tessera
