#include "coordinator/core/save_log.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SaveStateTest, EveryTransition) {
  constexpr SaveEvent kAll[] = {SaveEvent::kBegun, SaveEvent::kEpochOver, SaveEvent::kReported,
                                SaveEvent::kWithdrawn, SaveEvent::kGivenUp};
  using S = SaveState;
  const std::optional<S> none;
  const std::optional<S> expected[3][5] = {
      {S::kSaving, S::kWaiting, S::kEnded, S::kEnded, S::kEnded},  // kWaiting
      {S::kSaving, S::kWaiting, S::kEnded, none, S::kEnded},       // kSaving
      {none, none, none, none, none},                              // kEnded
  };
  for (int state = 0; state < 3; ++state) {
    for (int event = 0; event < 5; ++event)
      EXPECT_EQ(NextState(static_cast<S>(state), kAll[event]), expected[state][event])
          << state << " " << event;
  }
}

Save Ended(int64_t number, int64_t sequence, const std::string& path) {
  Save save;
  save.number = number;
  save.spec.path = path;
  save.state = SaveState::kEnded;
  save.ended_sequence = sequence;
  save.fate = SaveFate::kKept;
  return save;
}

TEST(SaveLogTest, RequestsAreDoneInTheOrderOfTheirNumbers) {
  SaveLog log;
  EXPECT_EQ(log.Head(), nullptr);
  for (int64_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(log.NextNumber(1), number);
    Save save;
    save.number = number;
    log.Put(save);
  }
  EXPECT_EQ(log.Head()->number, 1);
  log.Put(Ended(1, 1, "/a"));
  EXPECT_EQ(log.Head()->number, 2);
  log.Forget(2);
  EXPECT_EQ(log.Head()->number, 3);
  EXPECT_EQ(log.NextNumber(1), 4) << "no number is used twice";
  EXPECT_EQ(log.NextNumber(100), 100);
}

TEST(SaveLogTest, OfThoseThatEndedTheFirstAreForgotten) {
  SaveLog log;
  for (int64_t i = 1; i < SaveLog::kMaxEnded; ++i) log.Put(Ended(i, SaveLog::kMaxEnded - i, "/a"));
  EXPECT_THAT(log.Surplus(), IsEmpty());
  log.Put(Ended(SaveLog::kMaxEnded, SaveLog::kMaxEnded, "/a"));
  EXPECT_THAT(log.Surplus(), ElementsAre(SaveLog::kMaxEnded - 1)) << "by when they ended";
}

TEST(SaveLogTest, OfThoseThatEndedNoMoreTextIsKeptThanThereMayBe) {
  SaveLog log;
  constexpr int kFit = SaveLog::kMaxEndedTextBytes / 4096;
  for (int64_t i = 1; i <= kFit; ++i) log.Put(Ended(i, i, "/" + std::string(4095, 'a')));
  EXPECT_THAT(log.Surplus(), IsEmpty());
  log.Put(Ended(kFit + 1, kFit + 1, "/a"));
  EXPECT_THAT(log.Surplus(), ElementsAre(1));
}

TEST(SaveLogTest, PathThatIsSavedAgainOrRemovedChangesWhatEndedBefore) {
  SaveLog log;
  log.Put(Ended(1, 1, "/a"));
  log.Put(Ended(2, 2, "/b"));
  log.Put(Ended(3, 3, "/c"));
  log.Put(Ended(4, 4, "/a"));
  const std::vector<Save> outdated = log.Outdated(*log.Find(4), {"/b"});
  ASSERT_EQ(outdated.size(), 2);
  EXPECT_EQ(outdated[0].number, 1);
  EXPECT_EQ(outdated[0].fate, SaveFate::kReplaced);
  EXPECT_EQ(outdated[1].number, 2);
  EXPECT_EQ(outdated[1].fate, SaveFate::kRemoved);
  EXPECT_THAT(log.Outdated(*log.Find(1), {"/b", "/c"}), IsEmpty()) << "these ended after it";
}

}  // namespace
}  // namespace tessera::coordinator
