// The checkpoints of one rank, counted for metrics: how long they took, and what the rank wrote of
// them. Value; thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_SAVE_COUNTS_H_
#define TESSERA_WORKER_KEEPER_SAVE_COUNTS_H_

#include <array>
#include <cstdint>

#include "proto/saves.pb.h"

namespace tessera {

struct SaveCounts {
  // Upper bounds. A save that took longer than the last one is in a bucket of its own.
  static constexpr std::array<double, 12> kBounds_s = {0.1, 0.25, 0.5, 1,   2.5, 5,
                                                       10,  30,   60,  120, 300, 600};

  std::array<int64_t, kBounds_s.size() + 1> counts{};
  double sum_s = 0;
  double written_bytes = 0;

  // `begun`: what the rank reported last before `ended`. Counts saves that succeeded.
  void Add(const v1::SaveReport& begun, const v1::SaveReport& ended);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_SAVE_COUNTS_H_
