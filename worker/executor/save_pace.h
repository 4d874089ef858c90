// How fast a save in the background takes a version: no faster than training has to feel.
//
//   version v ────── step v+1 ────── voted ────── step v+2 ────── v is overwritten
//   taken     ████████████████████████████████████░░░░░░░░░░
//                                              deadline: what is left is copied
//
// Copying, summing and writing take a share of the processors, all of it from one step if they go
// as fast as they can. The version stands for two steps, so they are spread over the most of these.
// How long a step takes is known from the one before. Times are since the save began; pure.
// Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_PACE_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_PACE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera {

// A rank that takes no more than this in a second costs a step next to nothing, however long.
inline constexpr int64_t kFreeBytesPerSecond = int64_t{64} << 20;

class SavePace {
 public:
  SavePace() = default;  // Nothing is held back.
  // Of `all_bytes`, to be spread over so many steps, at most, of `step` each; 0: as fast as can be.
  // 0 <= steps < 2.
  SavePace(int64_t all_bytes, absl::Duration step, double steps);

  // When more may be taken, where `taken_bytes` are; never later than the deadline.
  absl::Duration NotBefore(int64_t taken_bytes) const;
  // Too little for a pause: the taking thread pauses once it has taken as much since the last one.
  int64_t grain_bytes() const { return std::min(kGrainBytes, all_bytes_ / 16); }
  // The step after the version is voted for. To take `taken_bytes` took `busy`, without pauses.
  // Returns when the rest must be copied: at once, if it will not be taken in time, and then
  // nothing is held back any more; else at the new deadline.
  absl::Duration StepVoted(absl::Duration now, int64_t taken_bytes, absl::Duration busy);
  // Nothing is held back from here on: somebody waits.
  void Hurry() { deadline_ = from_; }

 private:
  void Spread(absl::Duration from, int64_t taken_bytes, absl::Duration over);

  static constexpr int64_t kGrainBytes = int64_t{2} << 20;

  int64_t all_bytes_ = 0;
  absl::Duration step_;
  double steps_ = 0;
  // From `from_`, where `from_bytes_` were taken, evenly to the deadline.
  absl::Duration from_, deadline_;
  int64_t from_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_PACE_H_
