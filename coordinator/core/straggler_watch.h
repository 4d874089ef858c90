// Finds the ranks of one epoch whose trainers compute longer than the others', so that these wait in
// every step. Pure: time is an argument. Value; thread-compatible.
//
//   window           from one report of each rank to a later one, kWindowSteps of each rank or more
//   compute          compute_seconds per step in the window, at most a step's time
//   median           of all ranks' compute; of an even number the lower one of the two in the middle
//   over             compute > kRatio * median, and the excess is >= kShareOfStep of a step's time
//   slow             over in kWindows windows in a row, until it is not over in as many
//
// Values come from workers, which may report anything: what is negative, not finite or shrinks
// counts as nothing, and the rank's part of the window begins again.
#ifndef TESSERA_COORDINATOR_CORE_STRAGGLER_WATCH_H_
#define TESSERA_COORDINATOR_CORE_STRAGGLER_WATCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"

namespace tessera::coordinator {

class StragglerWatch {
 public:
  static constexpr int64_t kWindowSteps = 20;
  static constexpr int kWindows = 2;
  static constexpr double kRatio = 1.5;
  static constexpr double kShareOfStep = 0.1;

  StragglerWatch() = default;
  explicit StragglerWatch(int32_t world_size) : ranks_(world_size) {}

  // `rank` is at `step`, and its trainer has computed for so long in all. Requires
  // 0 <= rank < world_size.
  void Heard(Rank rank, Step step, double compute_seconds, absl::Time now);

  bool IsWindowFull() const { return num_ready_ == ranks_.size() && ranks_.size() > 1; }
  struct Change {
    Rank rank;
    bool is_slow = false;
    // Of one step, in the window.
    absl::Duration compute, median, step;
  };
  // Requires that the window is full; begins the next one.
  std::vector<Change> EndWindow();

 private:
  struct Report {
    int64_t step = 0;
    double compute_seconds = 0;
    absl::Time at;
  };
  struct State {
    std::optional<Report> begin, last;
    bool is_slow = false;
    int windows_against = 0;  // In a row, that say the contrary of is_slow.

    bool IsReady() const { return begin.has_value() && last->step - begin->step >= kWindowSteps; }
  };

  std::vector<State> ranks_;
  size_t num_ready_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_STRAGGLER_WATCH_H_
