#include "tests/gpu/product_count.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr double kNear = 1.25, kAcceptable = 2;
constexpr double kMostGrowth = 16;  // By a time that says little: of few, or none at all.

// By what factor the time is off, either way; infinite: it is none.
double Distance(double seconds, double wanted) {
  if (!(seconds > 0)) return std::numeric_limits<double>::infinity();
  return std::max(seconds / wanted, wanted / seconds);
}

struct Try {
  int64_t count;
  double seconds;
};

// By the line through the last two, since some of the time is nobody's product; by the last alone
// where they make none. Never the last one's own count, but at the ends of what there may be.
int64_t NextCount(const std::vector<Try>& tries, double wanted) {
  const auto [count, seconds] = tries.back();
  double next = static_cast<double>(count) * (seconds > 0 ? wanted / seconds : kMostGrowth);
  if (tries.size() > 1) {
    const Try& before = tries[tries.size() - 2];
    const double slope = (seconds - before.seconds) / static_cast<double>(count - before.count);
    if (slope > 0) next = static_cast<double>(count) + (wanted - seconds) / slope;
  }
  next = std::round(std::clamp(next, count / kMostGrowth, count * kMostGrowth));
  if (next == count) next += seconds >= wanted ? -1 : 1;
  return static_cast<int64_t>(std::clamp(next, 1.0, static_cast<double>(kMostProducts)));
}

}  // namespace

absl::StatusOr<int64_t> CountThatTakes(double seconds, const MeasureProducts& measure) {
  if (!(seconds > 0) || !std::isfinite(seconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("products that take ", seconds, " s: it has to be above 0, and finite"));
  }
  std::vector<Try> tries;
  Try best = {0, 0};
  const auto was_tried = [&](int64_t count) {
    return std::any_of(tries.begin(), tries.end(), [=](Try t) { return t.count == count; });
  };
  for (int64_t count = 1; tries.size() < kMostCountTries && !was_tried(count);
       count = NextCount(tries, seconds)) {
    ASSIGN_OR_RETURN(const double took, measure(count));
    tries.push_back({count, took});
    if (Distance(took, seconds) < Distance(best.seconds, seconds)) best = tries.back();
    if (Distance(best.seconds, seconds) <= kNear) return best.count;
  }
  const bool one_is_longer = best.count == 1 && best.seconds > seconds;
  if (one_is_longer || Distance(best.seconds, seconds) <= kAcceptable) return best.count;
  const std::string each = absl::StrJoin(tries, ", ", [](std::string* text, const Try& one) {
    absl::StrAppend(text, one.count, " took ", one.seconds, " s");
  });
  return absl::FailedPreconditionError(
      absl::StrCat("no number of products takes ", seconds, " s: ", each));
}

int64_t ProductsOfPass(int64_t count, int pass, int num_passes) {
  return (pass + 1) * count / num_passes - pass * count / num_passes;
}

}  // namespace gpu_check
}  // namespace tessera
