#include "worker/keeper/save_counts.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::SaveReport Begun(int64_t all_bytes) {
  v1::SaveReport report;
  report.set_phase(v1::SaveReport::BEGUN);
  report.set_all_bytes(all_bytes);
  return report;
}

v1::SaveReport Ended(int64_t took_ms, absl::StatusCode code = absl::StatusCode::kOk) {
  v1::SaveReport report;
  report.set_phase(v1::SaveReport::ENDED);
  report.set_took_ms(took_ms);
  report.set_code(static_cast<int>(code));
  report.set_size_bytes(1 << 30);
  return report;
}

TEST(SaveCountsTest, ASaveIsInTheFirstBucketThatHoldsIt) {
  SaveCounts counts;
  counts.Add(Begun(10), Ended(100));
  counts.Add(Begun(20), Ended(101));
  counts.Add(Begun(30), Ended(600'001));
  EXPECT_EQ(counts.counts[0], 1);
  EXPECT_EQ(counts.counts[1], 1);
  EXPECT_EQ(counts.counts.back(), 1);
  EXPECT_DOUBLE_EQ(counts.sum_s, 600.202);
}

TEST(SaveCountsTest, BytesAreThoseOfTheRankAndNotOfTheCheckpoint) {
  SaveCounts counts;
  counts.Add(Begun(10), Ended(1));
  counts.Add(Begun(20), Ended(1));
  EXPECT_EQ(counts.written_bytes, 30);
}

TEST(SaveCountsTest, OneThatFailedIsNotCounted) {
  SaveCounts counts;
  counts.Add(Begun(10), Ended(5, absl::StatusCode::kAborted));
  counts.Add(Begun(10), Ended(5, absl::StatusCode::kUnavailable));
  EXPECT_EQ(counts.counts[0], 0);
  EXPECT_EQ(counts.sum_s, 0);
  EXPECT_EQ(counts.written_bytes, 0);
}

TEST(SaveCountsTest, SumsOfTheLargestReportsStayPositive) {
  SaveCounts counts;
  for (int i = 0; i < 4; ++i) counts.Add(Begun(INT64_MAX), Ended(INT64_MAX));
  EXPECT_GT(counts.written_bytes, 0);
  EXPECT_GT(counts.sum_s, 0);
}

}  // namespace
}  // namespace tessera
