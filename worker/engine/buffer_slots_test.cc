#include "worker/engine/buffer_slots.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/region.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

const std::vector<BufferSpec>& Specs() {
  static const auto* const specs =
      new std::vector<BufferSpec>{{"count", StoredDType::kI64, {}},
                                  {"none", StoredDType::kBool, {3, 0}},
                                  {"mean", StoredDType::kF32, {33}},
                                  {"table", StoredDType::kF8E4M3, {5000}}};
  return *specs;
}
constexpr int kMean = 2, kTable = 3;

TEST(BufferPlacementTest, BuffersAreAlignedOverlapNowhereAndFillWholePages) {
  const auto placement = BufferPlacement::Of(Specs());
  ASSERT_OK(placement);
  ASSERT_EQ(placement->size(), 4);
  int64_t end = 4 * sizeof(uint64_t);
  const std::vector<int64_t> sizes = {8, 0, 132, 5000};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(placement->size_bytes(i), sizes[i]);
    EXPECT_EQ(placement->offset_bytes(i) % 64, 0);
    EXPECT_GE(placement->offset_bytes(i), end);
    end = placement->offset_bytes(i) + sizes[i];
  }
  EXPECT_GE(placement->bank_bytes(), end);
  EXPECT_EQ(placement->bank_bytes() % kPageBytes, 0);
}

TEST(BufferPlacementTest, OfNoBuffersTakesNothingAndTooLargeOnesAreRefused) {
  EXPECT_EQ(BufferPlacement::Of({})->bank_bytes(), 0);
  EXPECT_THAT(BufferPlacement::Of({{"x", StoredDType::kF32, {int64_t{1} << 62}}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
  const BufferSpec half = {"y", StoredDType::kU8, {int64_t{1} << 39}};
  EXPECT_THAT(BufferPlacement::Of({half, half}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'y'")));
}

class BufferSlotsTest : public ::testing::Test {
 protected:
  BufferSlotsTest()
      : placement_(*BufferPlacement::Of(Specs())),
        staging_(placement_.bank_bytes()),
        slots_(2 * placement_.bank_bytes()) {}
  void TearDown() override { DisarmAllFaultPoints(); }

  BufferBank staging() { return {&placement_, staging_.data()}; }
  BufferBank slot(int64_t step) {
    return {&placement_, slots_.data() + step % 2 * placement_.bank_bytes()};
  }
  // As the executor of rank 0, or the one after it.
  BufferSlots Open() { return BufferSlots(&placement_, staging_.data(), slots_.data()); }

  std::string Bytes(int buffer, char fill) const {
    return std::string(placement_.size_bytes(buffer), fill);
  }
  void Set(int buffer, char fill) { staging().Write(buffer, Bytes(buffer, fill).data()); }
  std::string At(int64_t step, int buffer) {
    return {reinterpret_cast<const char*>(slot(step).values(buffer)),
            static_cast<size_t>(placement_.size_bytes(buffer))};
  }
  std::string Staged(int buffer) {
    return {reinterpret_cast<const char*>(staging().values(buffer)),
            static_cast<size_t>(placement_.size_bytes(buffer))};
  }
  // As if the trainer were killed in the middle of a write.
  void Tear(int buffer, char fill) {
    staging().sequence(buffer).fetch_or(1);
    memset(staging().values(buffer), fill, placement_.size_bytes(buffer) / 2);
  }

  const BufferPlacement placement_;
  std::vector<std::byte> staging_, slots_;
};

TEST_F(BufferSlotsTest, EachVersionHasWhatWasSetBeforeItAndTheOneBeforeStands) {
  BufferSlots slots = Open();
  Set(kTable, 't');
  for (int64_t step = 0; step < 6; ++step) {
    Set(kMean, static_cast<char>('a' + step));
    slots.Publish(step);
    EXPECT_EQ(At(step, kMean), Bytes(kMean, 'a' + step));
    EXPECT_EQ(At(step, kTable), Bytes(kTable, 't'));
    if (step > 0) {
      EXPECT_EQ(At(step - 1, kMean), Bytes(kMean, 'a' + step - 1));
    }
  }
}

TEST_F(BufferSlotsTest, WhatDoesNotChangeIsCopiedOncePerSlotAndNeverAgain) {
  BufferSlots slots = Open();
  for (int buffer = 0; buffer < 4; ++buffer) Set(buffer, 'c');
  slots.Publish(0);
  slots.Publish(1);
  EXPECT_EQ(slots.num_copied(), 8);
  for (int64_t step = 2; step < 50; ++step) slots.Publish(step);
  EXPECT_EQ(slots.num_copied(), 8);
  Set(kMean, 'd');
  for (int64_t step = 50; step < 60; ++step) slots.Publish(step);
  EXPECT_EQ(slots.num_copied(), 10);
  EXPECT_EQ(At(59, kMean), Bytes(kMean, 'd'));
  EXPECT_EQ(At(58, kMean), Bytes(kMean, 'd'));
}

TEST_F(BufferSlotsTest, WhatAnotherRankHadIsGivenToTheTrainerAndGivesWayToItsNextWrite) {
  std::vector<std::byte> bank(placement_.bank_bytes());
  BufferBank(&placement_, bank.data()).Write(kMean, Bytes(kMean, 'r').data());
  BufferSlots slots = Open();
  slots.TakeOver(4, bank.data());
  slots.DropLoaded();  // As each epoch begins.
  EXPECT_EQ(At(4, kMean), Bytes(kMean, 'r'));
  EXPECT_EQ(Staged(kMean), Bytes(kMean, 'r'));
  EXPECT_EQ(At(4, kTable), std::string(placement_.size_bytes(kTable), 0));
  slots.Publish(5);
  EXPECT_EQ(At(5, kMean), Bytes(kMean, 'r'));
  // The other trainer had written as often: equal words are not a reason to keep its bytes.
  Set(kMean, 'o');
  slots.Publish(6);
  EXPECT_EQ(At(6, kMean), Bytes(kMean, 'o'));
}

TEST_F(BufferSlotsTest, WhatWasNeverSetReadsAsZeroesAndCostsNothing) {
  BufferSlots slots = Open();
  for (int64_t step = 0; step < 3; ++step) slots.Publish(step);
  EXPECT_EQ(At(2, kMean), Bytes(kMean, 0));
  EXPECT_EQ(slots.num_copied(), 0);
}

// Whatever the trainer had started to write, and whether or not another one comes.
TEST_F(BufferSlotsTest, TrainerKilledInAWriteLeavesTheVersionsBeforeItWhole) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  Set(kMean, 'b');
  slots.Publish(1);
  Tear(kMean, 'x');
  for (int64_t step = 2; step < 5; ++step) {
    slots.Publish(step);
    EXPECT_EQ(At(step, kMean), Bytes(kMean, 'b'));
  }
  Set(kMean, 'c');
  slots.Publish(5);
  EXPECT_EQ(At(5, kMean), Bytes(kMean, 'c'));
  EXPECT_EQ(At(4, kMean), Bytes(kMean, 'b'));
}

// What was set for a step that was undone, and then torn by the trainer that tried it again.
TEST_F(BufferSlotsTest, WhatNoVersionHadIsNotTakenOnceItIsTorn) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  Set(kMean, 'b');
  Tear(kMean, 'c');
  slots.Publish(1);
  EXPECT_EQ(At(1, kMean), Bytes(kMean, 'a'));
}

TEST_F(BufferSlotsTest, TrainerKilledInItsFirstWriteLeavesZeroesAlsoWhereAPublicationWasTorn) {
  Tear(kMean, 'x');
  slot(0).sequence(kMean).store(1);
  memset(slot(0).values(kMean), 'y', 10);
  BufferSlots slots = Open();
  slots.Publish(0);
  slots.Publish(1);
  EXPECT_EQ(At(0, kMean), Bytes(kMean, 0));
  EXPECT_EQ(At(1, kMean), Bytes(kMean, 0));
}

TEST_F(BufferSlotsTest, ExecutorKilledInACopyIsFollowedByOneThatMakesTheSameVersion) {
  for (int buffer = 0; buffer < 4; ++buffer) Set(buffer, 'a');
  Open().Publish(0);
  for (int buffer = 0; buffer < 4; ++buffer) Set(buffer, 'b');
  // As far as it came: the first buffers, and a half of one.
  Open().Publish(1);
  slot(1).sequence(kMean).store(1);
  memset(slot(1).values(kMean), 'x', 40);
  slot(1).sequence(kTable).store(0);
  memset(slot(1).values(kTable), 0, placement_.size_bytes(kTable));
  Open().Publish(1);
  for (int buffer = 0; buffer < 4; ++buffer) {
    EXPECT_EQ(At(1, buffer), Bytes(buffer, 'b'));
    EXPECT_EQ(At(0, buffer), Bytes(buffer, 'a'));
  }
}

TEST_F(BufferSlotsTest, WhatALoadHasIsTheVersionsAndStaysUntilTheTrainerSetsAnother) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  Set(kTable, 't');
  slots.Publish(0);
  slots.Load(1, kMean, Bytes(kMean, 'l'));
  EXPECT_EQ(At(0, kMean), Bytes(kMean, 'a'));
  slots.Publish(1);
  slots.Publish(1);  // By an executor that follows one that was killed.
  for (int64_t step = 1; step < 5; ++step) {
    if (step > 1) slots.Publish(step);
    EXPECT_EQ(At(step, kMean), Bytes(kMean, 'l'));
    EXPECT_EQ(At(step, kTable), Bytes(kTable, 't'));
  }
  Set(kMean, 'b');
  slots.Publish(5);
  EXPECT_EQ(At(5, kMean), Bytes(kMean, 'b'));
}

TEST_F(BufferSlotsTest, LoadThatIsNotDecidedLeavesNoTrace) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  slots.Publish(1);
  slots.Load(2, kMean, Bytes(kMean, 'l'));
  BufferSlots next = Open();
  next.DropLoaded();
  for (int64_t step = 2; step < 5; ++step) {
    next.Publish(step);
    EXPECT_EQ(At(step, kMean), Bytes(kMean, 'a'));
  }
}

TEST_F(BufferSlotsTest, FirstVersionMayBeLoaded) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Load(0, kMean, Bytes(kMean, 'l'));
  slots.Publish(0);
  slots.Publish(1);
  EXPECT_EQ(At(0, kMean), Bytes(kMean, 'l'));
  EXPECT_EQ(At(1, kMean), Bytes(kMean, 'l'));
}

TEST_F(BufferSlotsTest, TrainerIsToldWhatIsNotItsOwn) {
  BufferSlots slots = Open();
  const auto is_given = [&] { return (staging().sequence(kMean).load() & kGivenWord) != 0; };
  Set(kMean, 'a');
  slots.Publish(0);
  EXPECT_FALSE(is_given());
  slots.Load(1, kMean, Bytes(kMean, 'l'));
  EXPECT_FALSE(is_given()) << "nobody has decided it";
  slots.Publish(1);
  EXPECT_TRUE(is_given());
  const int64_t copied = slots.num_copied();
  slots.Publish(2);
  slots.Publish(3);
  slots.Publish(4);
  EXPECT_EQ(slots.num_copied(), copied + 1) << "the slot of even versions had another one";
  EXPECT_EQ(At(4, kMean), Bytes(kMean, 'l'));
  Set(kMean, 'b');
  EXPECT_FALSE(is_given());
  slots.Publish(5);
  EXPECT_EQ(At(5, kMean), Bytes(kMean, 'b'));
}

TEST_F(BufferSlotsTest, LoadThatCannotBeReadLeavesNoTrace) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  EXPECT_THAT(slots.Load(1, kMean,
                         [](std::byte* values) {
                           memset(values, 'x', 10);
                           return absl::DataLossError("torn");
                         }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("torn")));
  slots.DropLoaded();
  for (int64_t step = 1; step < 4; ++step) {
    slots.Publish(step);
    EXPECT_EQ(At(step, kMean), Bytes(kMean, 'a'));
  }
}

// Of what the trainer before set for a step that was undone, whole or not, nothing is left.
TEST_F(BufferSlotsTest, NextTrainerGetsThoseOfTheVersionAndTheyStayItsOwnVersions) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  Set(kTable, 't');
  slots.Publish(0);
  Set(kMean, 'b');
  slots.Publish(1);
  for (const bool torn : {false, true, true}) {
    Set(kMean, 'c');
    if (torn) Tear(kMean, 'x');
    const int64_t copied = slots.num_copied();
    Open().Restore(1);
    EXPECT_EQ(Staged(kMean), Bytes(kMean, 'b'));
    EXPECT_EQ(Staged(kTable), Bytes(kTable, 't'));
    for (const int buffer : {kMean, kTable}) {
      const uint64_t word = staging().sequence(buffer).load();
      EXPECT_EQ(word % 2, 0u);
      EXPECT_NE(word & kGivenWord, 0u);
      EXPECT_EQ(slot(1).sequence(buffer).load(), word);
    }
    EXPECT_EQ(At(0, kMean), Bytes(kMean, 'a'));
    EXPECT_EQ(slots.num_copied(), copied);
  }
  slots.Publish(2);
  EXPECT_EQ(At(2, kMean), Bytes(kMean, 'b'));
  EXPECT_EQ(At(2, kTable), Bytes(kTable, 't'));
}

TEST_F(BufferSlotsTest, WhatStaysAsItWasGivenIsCopiedNoMore) {
  BufferSlots slots = Open();
  for (int buffer = 0; buffer < 4; ++buffer) Set(buffer, 'a');
  slots.Publish(0);
  slots.Publish(1);
  const int64_t copied = slots.num_copied();
  slots.Restore(1);
  for (int64_t step = 2; step < 6; ++step) slots.Publish(step);
  EXPECT_EQ(slots.num_copied(), copied);
  EXPECT_EQ(At(5, kTable), Bytes(kTable, 'a'));
}

// Whatever a trainer wrote over its words, the next one gets those of the version.
TEST_F(BufferSlotsTest, WordsOfATrainerThatIsGoneKeepNothingFromTheNextOne) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  for (const uint64_t word : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 62, uint64_t{3}}) {
    staging().sequence(kMean).store(word);
    memset(staging().values(kMean), 'x', 10);
    slots.Restore(0);
    slots.DropLoaded();  // Of the epoch that begins.
    EXPECT_EQ(Staged(kMean), Bytes(kMean, 'a')) << word;
    slots.Restore(0);
    EXPECT_NE(staging().sequence(kMean).load() & kGivenWord, 0u) << word;
    EXPECT_EQ(At(0, kMean), Bytes(kMean, 'a')) << word;
  }
}

TEST_F(BufferSlotsTest, WhatNoVersionHasIsNotGiven) {
  BufferSlots slots = Open();
  slots.Publish(0);
  Set(kMean, 'a');  // For a step that is undone.
  slots.Restore(0);
  EXPECT_EQ(staging().sequence(kMean).load() & kGivenWord, 0u);
  EXPECT_EQ(staging().sequence(kTable).load(), 0u);
}

// A trainer may write anything over its words.
TEST_F(BufferSlotsTest, WordsThatNoTrainerWritesAreNotTaken) {
  BufferSlots slots = Open();
  Set(kMean, 'a');
  slots.Publish(0);
  for (const uint64_t word :
       {uint64_t{1}, uint64_t{1} << 63, (uint64_t{1} << 63) + 2, ~uint64_t{0}}) {
    staging().sequence(kMean).store(word);
    memset(staging().values(kMean), 'x', 10);
    for (int64_t step = 1; step < 5; ++step) {
      slots.Publish(step);
      EXPECT_EQ(At(step, kMean), Bytes(kMean, 'a')) << word;
    }
  }
}

}  // namespace
}  // namespace tessera
