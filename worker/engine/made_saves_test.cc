#include "worker/engine/made_saves.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::Optional;

constexpr int64_t kStep = 7, kTrainer = 1, kSuccessor = 2;
constexpr uint64_t kCheckpoint = 11, kModel = 12;

class MadeSavesTest : public testing::Test {
 protected:
  std::optional<int> Find(int64_t trainer, int64_t step, uint64_t request) const {
    return FindUnknown(saves_, known_, trainer, step, request);
  }
  MadeSaves saves_ = {};
  KnownSaves known_ = {};
};

TEST_F(MadeSavesTest, SaveIsFoundUntilItsTrainerKnowsOfIt) {
  EXPECT_EQ(Find(kTrainer, kStep, kCheckpoint), std::nullopt);
  NoteSave(&saves_, kStep, 0, kCheckpoint);
  EXPECT_THAT(Find(kTrainer, kStep, kCheckpoint), Optional(0));
  EXPECT_EQ(Find(kTrainer, kStep, kModel), std::nullopt);
  NoteKnown(&known_, kTrainer, kStep, 0);
  EXPECT_EQ(Find(kTrainer, kStep, kCheckpoint), std::nullopt);
}

TEST_F(MadeSavesTest, SameSaveOfAStepIsMadeAsOftenAsItsTrainerAsks) {
  for (int number = 0; number < 3; ++number) {
    EXPECT_EQ(Find(kTrainer, kStep, kCheckpoint), std::nullopt);
    EXPECT_EQ(CountSaves(saves_, kStep), number);
    NoteSave(&saves_, kStep, number, kCheckpoint);
    EXPECT_THAT(Find(kTrainer, kStep, kCheckpoint), Optional(number));
    NoteKnown(&known_, kTrainer, kStep, number);
  }
}

TEST_F(MadeSavesTest, SuccessorOfATrainerFindsAllThatTheStepHas) {
  NoteSave(&saves_, kStep, 0, kCheckpoint);
  NoteSave(&saves_, kStep, 1, kModel);
  NoteKnown(&known_, kTrainer, kStep, 1);
  EXPECT_THAT(Find(kSuccessor, kStep, kCheckpoint), Optional(0));
  NoteKnown(&known_, kSuccessor, kStep, 0);
  EXPECT_EQ(Find(kSuccessor, kStep, kCheckpoint), std::nullopt);
  EXPECT_THAT(Find(kSuccessor, kStep, kModel), Optional(1));
}

TEST_F(MadeSavesTest, SavesOfOtherStepsAreNotFound) {
  NoteSave(&saves_, kStep, 0, kCheckpoint);
  NoteSave(&saves_, kStep, 1, kModel);
  EXPECT_EQ(Find(kTrainer, kStep + 1, kCheckpoint), std::nullopt);
  EXPECT_EQ(CountSaves(saves_, kStep + 1), 0);
  NoteSave(&saves_, kStep + 1, 0, kModel);
  EXPECT_THAT(Find(kTrainer, kStep + 1, kModel), Optional(0));
  EXPECT_EQ(CountSaves(saves_, kStep + 1), 1);
  EXPECT_EQ(SavesOf(saves_, kStep + 1), (SavesOfStep{kModel}));
}

TEST_F(MadeSavesTest, SavesOfTheFirstStepOfFreshMemoryAreNone) {
  EXPECT_EQ(CountSaves(saves_, 0), 0);
  EXPECT_EQ(Find(/*trainer=*/0, /*step=*/0, kCheckpoint), std::nullopt);
}

TEST_F(MadeSavesTest, MoreThanHaveRoomAreNotNoted) {
  for (int number = 0; number <= kMaxMadeSaves; ++number)
    NoteSave(&saves_, kStep, number, kCheckpoint);
  EXPECT_EQ(CountSaves(saves_, kStep), kMaxMadeSaves);
  NoteKnown(&known_, kTrainer, kStep, kMaxMadeSaves);
  EXPECT_EQ(Find(kTrainer, kStep, kCheckpoint), std::nullopt);
}

}  // namespace
}  // namespace tessera
