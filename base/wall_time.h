// Times of SteadyNow() (steady_time.h) as the wall clock has them, for other processes and later
// ones, and back. To a tenth of a second: what differs by less is left as it is. Thread-safe.
#ifndef TESSERA_BASE_WALL_TIME_H_
#define TESSERA_BASE_WALL_TIME_H_

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tessera {

// By how much the wall clock is ahead now, after it was set.
inline absl::Duration WallClockLead() {
  return absl::Trunc(WallNow() - SteadyNow(), absl::Milliseconds(100));
}
inline absl::Time ToWallTime(absl::Time steady) { return steady + WallClockLead(); }
inline absl::Time FromWallTime(absl::Time wall) { return wall - WallClockLead(); }

}  // namespace tessera

#endif  // TESSERA_BASE_WALL_TIME_H_
