#include "coordinator/core/step_ledger.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

TEST(StepLedgerTest, StepCommitsWhenAllRanksReportedIt) {
  StepLedger ledger(3, Step(0));
  EXPECT_FALSE(ledger.Report(Rank(0), Step(1), 7).has_value());
  EXPECT_FALSE(ledger.Report(Rank(2), Step(1), 7).has_value());
  EXPECT_FALSE(ledger.Report(Rank(2), Step(1), 7).has_value());
  EXPECT_EQ(ledger.committed_step(), Step(0));
  EXPECT_FALSE(ledger.Report(Rank(1), Step(1), 7).has_value());
  EXPECT_EQ(ledger.committed_step(), Step(1));
}

TEST(StepLedgerTest, LateReportsNeverTakeAStepBack) {
  StepLedger ledger(1, Step(5));
  ledger.Report(Rank(0), Step(3), 1);
  EXPECT_EQ(ledger.committed_step(), Step(5));
  ledger.Report(Rank(0), Step(8), 1);
  ledger.Report(Rank(0), Step(6), 1);
  EXPECT_EQ(ledger.committed_step(), Step(8));
}

TEST(StepLedgerTest, LaterStepCommitsThoughAReportOfAnEarlierWasLost) {
  StepLedger ledger(2, Step(0));
  ledger.Report(Rank(0), Step(1), 1);
  ledger.Report(Rank(0), Step(2), 1);
  ledger.Report(Rank(1), Step(2), 1);
  EXPECT_EQ(ledger.committed_step(), Step(2));
}

TEST(StepLedgerTest, DifferentHashesNameTheRanksAndNeverCommit) {
  StepLedger ledger(3, Step(0));
  EXPECT_FALSE(ledger.Report(Rank(2), Step(1), 7).has_value());
  const auto mismatch = ledger.Report(Rank(1), Step(1), 8);
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_EQ(mismatch->first, Rank(1));
  EXPECT_EQ(mismatch->second, Rank(2));
  EXPECT_TRUE(ledger.Report(Rank(0), Step(1), 8).has_value());
  EXPECT_EQ(ledger.committed_step(), Step(0));
}

TEST(StepLedgerTest, RankThatRunsAwayDoesNotCommitAlone) {
  StepLedger ledger(2, Step(0));
  for (int64_t step = 1; step < 10000; ++step) ledger.Report(Rank(0), Step(step), 1);
  EXPECT_EQ(ledger.committed_step(), Step(0));
  ledger.Report(Rank(1), Step(9999), 1);
  EXPECT_EQ(ledger.committed_step(), Step(9999));
}

}  // namespace
}  // namespace tessera::coordinator
