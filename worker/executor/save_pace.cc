#include "worker/executor/save_pace.h"

namespace tessera {

SavePace::SavePace(int64_t all_bytes, absl::Duration step, double steps)
    : all_bytes_(all_bytes), step_(step), steps_(steps) {
  Spread(absl::ZeroDuration(), 0, steps * step);
}

void SavePace::Spread(absl::Duration from, int64_t taken_bytes, absl::Duration over) {
  const absl::Duration free = absl::Seconds(static_cast<double>(all_bytes_ - taken_bytes) /
                                            static_cast<double>(kFreeBytesPerSecond));
  from_ = from;
  from_bytes_ = taken_bytes;
  deadline_ = from + std::min(over, free);
}

absl::Duration SavePace::NotBefore(int64_t taken_bytes) const {
  if (taken_bytes <= from_bytes_) return from_;
  if (taken_bytes >= all_bytes_) return deadline_;
  const double share = static_cast<double>(taken_bytes - from_bytes_) /
                       static_cast<double>(all_bytes_ - from_bytes_);
  return from_ + share * (deadline_ - from_);
}

absl::Duration SavePace::StepVoted(absl::Duration now, int64_t taken_bytes, absl::Duration busy) {
  const int64_t left_bytes = all_bytes_ - taken_bytes;
  // As long as the shorter of the last two steps took, the next one will: one of them may have had
  // an evaluation in it.
  const absl::Duration room = std::max(steps_ - 1, 0.0) * std::min(now, step_);
  const bool was_held_back = deadline_ > from_;
  // With time to spare: the device has others to serve, too. Little of it: what was taken shared
  // the processors with the step, and so will the rest.
  constexpr double kSpare = 1.25;
  const bool in_time =
      taken_bytes > 0 &&
      kSpare * busy * (static_cast<double>(left_bytes) / static_cast<double>(taken_bytes)) <= room;
  if (!in_time) {
    Hurry();
    return now;
  }
  if (was_held_back) Spread(now, taken_bytes, room);
  return now + room;
}

}  // namespace tessera
