#include "coordinator/core/straggler_watch.h"

#include <algorithm>

namespace tessera::coordinator {
namespace {

// More than a process lives for. Differences of what is below are finite.
constexpr double kMaxSeconds = 1e10;

}  // namespace

void StragglerWatch::Heard(Rank rank, Step step, double compute_seconds, absl::Time now) {
  if (!(compute_seconds >= 0 && compute_seconds <= kMaxSeconds)) return;
  State& state = ranks_[rank.value()];
  const bool was_ready = state.IsReady();
  const Report report = {step.value(), compute_seconds, now};
  const bool shrinks = state.last.has_value() && (report.step < state.last->step ||
                                                  compute_seconds < state.last->compute_seconds);
  if (!state.begin.has_value() || shrinks) state.begin = report;
  state.last = report;
  if (state.IsReady() != was_ready) num_ready_ += was_ready ? -1 : 1;
}

std::vector<StragglerWatch::Change> StragglerWatch::EndWindow() {
  std::vector<absl::Duration> computes, steps;
  for (State& state : ranks_) {
    const double num_steps = static_cast<double>(state.last->step - state.begin->step);
    steps.push_back((state.last->at - state.begin->at) / num_steps);
    const absl::Duration compute =
        absl::Seconds((state.last->compute_seconds - state.begin->compute_seconds) / num_steps);
    computes.push_back(std::min(compute, steps.back()));
    state.begin = state.last;
  }
  num_ready_ = 0;
  std::vector<absl::Duration> sorted = computes;
  const auto middle = sorted.begin() + (sorted.size() - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const absl::Duration median = *middle;
  std::vector<Change> changes;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    State& state = ranks_[i];
    const bool is_over =
        computes[i] > kRatio * median && computes[i] - median >= kShareOfStep * steps[i];
    if (is_over == state.is_slow) {
      state.windows_against = 0;
      continue;
    }
    if (++state.windows_against < kWindows) continue;
    state.windows_against = 0;
    state.is_slow = is_over;
    changes.push_back({Rank(i), is_over, computes[i], median, steps[i]});
  }
  return changes;
}

}  // namespace tessera::coordinator
