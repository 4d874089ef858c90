#include "net/metrics_text.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTextTest, HasAHeadingForEachMetricThatHasValues) {
  MetricsText metrics;
  metrics.Gauge("empty", "Nothing.");
  metrics.Counter("bytes_total", "Bytes.");
  metrics.Value({{"op", "save"}}, 9007199254740991.0 - 1);
  metrics.Value({}, 0.1);
  EXPECT_EQ(metrics.Take().body,
            "# HELP bytes_total Bytes.\n# TYPE bytes_total counter\n"
            "bytes_total{op=\"save\"} 9007199254740990\nbytes_total 0.10000000000000001\n");
}

TEST(MetricsTextTest, EscapesForeignTextAndWritesNumbersThatAreNone) {
  MetricsText metrics;
  metrics.Gauge("value", "Any.");
  metrics.Value({{"name", "a\"b\\c\nd\xff"}}, std::numeric_limits<double>::quiet_NaN());
  metrics.Value({}, -std::numeric_limits<double>::infinity());
  const std::string text = metrics.Take().body;
  EXPECT_THAT(text, AllOf(HasSubstr("a\\\"b\\\\c"), HasSubstr("} NaN\n"), HasSubstr(" -Inf\n")));
  EXPECT_THAT(text, Not(HasSubstr("c\nd")));
}

TEST(MetricsTextTest, BucketsAreCumulative) {
  MetricsText metrics;
  metrics.Histogram("seconds", "Times.");
  metrics.Buckets({{"rank", "0"}}, {0.5, 1}, {1, 2, 3}, 9.5);
  EXPECT_THAT(metrics.Take().body, HasSubstr("seconds_bucket{rank=\"0\",le=\"0.5\"} 1\n"
                                             "seconds_bucket{rank=\"0\",le=\"1\"} 3\n"
                                             "seconds_bucket{rank=\"0\",le=\"+Inf\"} 6\n"
                                             "seconds_sum{rank=\"0\"} 9.5\n"
                                             "seconds_count{rank=\"0\"} 6\n"));
}

TEST(MetricsTextTest, AProcessTellsOfItself) {
  MetricsText metrics;
  AddProcessMetrics("tessera-test", &metrics);
  EXPECT_THAT(metrics.Take().body,
              AllOf(HasSubstr("tessera_build_info{program=\"tessera-test\",version=\""),
                    HasSubstr("process_start_time_seconds 1"), HasSubstr("process_open_fds "),
                    Not(HasSubstr("process_resident_memory_bytes 0\n"))));
}

}  // namespace
}  // namespace tessera
