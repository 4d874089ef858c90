#include "coordinator/service/line_limit.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

TEST(LineLimitTest, TenLinesAMinuteAndHowManyWereLeftOut) {
  LineLimit limit;
  const absl::Time begin = absl::UnixEpoch();
  for (int i = 1; i <= LineLimit::kLinesAMinute; ++i) {
    const auto line = limit.Take("uid:1", begin + absl::Seconds(i));
    ASSERT_TRUE(line.has_value()) << i;
    EXPECT_EQ(line->is_last, i == LineLimit::kLinesAMinute);
    EXPECT_EQ(line->left_out, 0);
  }
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(limit.Take("uid:1", begin + absl::Seconds(59)));
  EXPECT_TRUE(limit.Take("uid:2", begin + absl::Seconds(59))) << "others' lines are others'";
  const auto later = limit.Take("uid:1", begin + absl::Seconds(62));
  ASSERT_TRUE(later.has_value());
  EXPECT_FALSE(later->is_last);
  EXPECT_EQ(later->left_out, 7);
  EXPECT_EQ(limit.Take("uid:1", begin + absl::Seconds(62))->left_out, 0) << "told once";
}

}  // namespace
}  // namespace tessera::coordinator
