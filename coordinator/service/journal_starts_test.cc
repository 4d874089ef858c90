#include "coordinator/service/journal_starts.h"

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/storage/memory_journal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class JournalStartsTest : public ::testing::Test {
 protected:
  static JournalStarts Begin(MemoryJournal* journal) {
    auto starts = JournalStarts::Read(*journal->ReadAll());
    EXPECT_OK(starts.status());
    EXPECT_OK(starts->Note(journal));
    EXPECT_OK(starts->Note(journal)) << "which adds nothing";
    return *std::move(starts);
  }
  static absl::Status Check(const JournalStarts& starts, const MemoryJournal& journal,
                            const HeardJournal& heard) {
    return starts.CheckHeard("w", heard, journal.num_changes());
  }

  MemoryJournal journal_;
};

TEST_F(JournalStartsTest, WhatWasHeardOfEarlierStartsIsThere) {
  const JournalStarts first = Begin(&journal_);
  const HeardJournal heard = {first.own(), journal_.num_changes()};
  const JournalStarts second = Begin(&journal_);
  EXPECT_NE(first.own(), second.own());
  EXPECT_OK(Check(second, journal_, heard));
  EXPECT_OK(Check(second, journal_, {second.own(), journal_.num_changes()}));
  EXPECT_OK(Check(second, journal_, {})) << "of a worker that has heard nothing";
}

TEST_F(JournalStartsTest, CopyThatAnotherCoordinatorRunsOnIsTold) {
  Begin(&journal_);
  MemoryJournal copy = journal_;
  const JournalStarts here = Begin(&journal_), there = Begin(&copy);
  EXPECT_THAT(Check(there, copy, {here.own(), journal_.num_changes()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("worker 'w'"), HasSubstr("start of the coordinator"),
                             HasSubstr("--older-journal"))));
}

TEST_F(JournalStartsTest, OlderCopyOfTheSameStartIsToldByTheNumberOfChanges) {
  const JournalStarts first = Begin(&journal_);
  MemoryJournal copy = journal_;
  for (int i = 0; i < 5; ++i)
    ASSERT_OK(journal_.Append({{JournalChange::Kind::kPut, "k", "v"}}, Durability::kPowerLoss));
  const HeardJournal heard = {first.own(), journal_.num_changes()};
  const JournalStarts next = Begin(&copy);
  EXPECT_THAT(Check(next, copy, heard), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 HasSubstr("6 changes of this journal, "
                                                           "which has 2")));
}

TEST_F(JournalStartsTest, ChangesThatNeedNotOutliveTheMachineAreNotCounted) {
  const int64_t before = journal_.num_changes();
  ASSERT_OK(journal_.Append({{JournalChange::Kind::kPut, "k", "v"}}, Durability::kProcessDeath));
  EXPECT_EQ(journal_.num_changes(), before);
}

TEST_F(JournalStartsTest, OldestStartsAreForgottenAndTheRowsDoNotGrow) {
  const JournalStarts first = Begin(&journal_);
  for (size_t i = 0; i < JournalStarts::kMaxStarts; ++i) Begin(&journal_);
  EXPECT_EQ(journal_.ReadAll()->size(), JournalStarts::kMaxStarts);
  const JournalStarts last = Begin(&journal_);
  EXPECT_FALSE(Check(last, journal_, {first.own(), 1}).ok());
}

TEST_F(JournalStartsTest, StartThatServedNobodyLeavesNothing) {
  ASSERT_OK(JournalStarts::Read(*journal_.ReadAll()).status());
  EXPECT_TRUE(journal_.ReadAll()->empty());
}

TEST_F(JournalStartsTest, RowThatNamesNoStartIsRefused) {
  for (const char* key : {"start/", "start/x", "start/-1"}) {
    MemoryJournal journal;
    ASSERT_OK(journal.Append({{JournalChange::Kind::kPut, key, "?"}}, Durability::kPowerLoss));
    EXPECT_THAT(JournalStarts::Read(*journal.ReadAll()).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(key)));
  }
}

// A journal on a disk that fills up.
class FullJournal : public MemoryJournal {
 public:
  explicit FullJournal(const bool* is_full) : is_full_(is_full) {}
  absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) override {
    if (*is_full_) return absl::ResourceExhaustedError("no space left");
    return MemoryJournal::Append(batch, durability);
  }

 private:
  const bool* const is_full_;
};

TEST(JournalStartsHostTest, StartIsToldOnceItIsInTheJournalAndAFullDiskIsNoReasonOfItsOwnToRefuse) {
  bool is_full = false;
  CoordinatorHost::Options options;
  options.tick_interval = absl::Hours(1);
  ASSERT_OK_AND_ASSIGN(const auto host,
                       CoordinatorHost::Create(options, std::make_unique<FullJournal>(&is_full)));
  is_full = true;
  RegisterWorkerEvent event;
  event.worker = WorkerId("w");
  event.member.num_devices = 1;
  event.member.key = std::string(32, 'k');
  EXPECT_THAT(host->RegisterWorker(event).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("nothing was changed")))
      << "a new one is to be remembered";
  EXPECT_EQ(host->ToHear().start, 0);
  is_full = false;
  EXPECT_OK(host->RegisterWorker(event).status());
  EXPECT_NE(host->ToHear().start, 0);
}

TEST(JournalStartsHostTest, OlderJournalMakesNoJobBeforeWorkersCouldSayWhatTheyHold) {
  CoordinatorHost::Options options;
  options.tick_interval = absl::Hours(1);
  options.older_journal = true;
  ASSERT_OK_AND_ASSIGN(const auto host,
                       CoordinatorHost::Create(options, std::make_unique<MemoryJournal>()));
  EXPECT_THAT(host->CreateJob({"r", JobId("j"), std::make_shared<JobSpec>()}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("takes over")));
}

}  // namespace
}  // namespace tessera::coordinator
