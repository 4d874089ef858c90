// The demo's learning rate over a training. Pure; thread-safe.
#ifndef TESSERA_TESTS_DEMO_SCHEDULE_H_
#define TESSERA_TESTS_DEMO_SCHEDULE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tessera::demo {

// What the learning rate is multiplied by in step `step` of `steps`, from 1 on: up in a line over a
// tenth of them, then down to a tenth by a cosine.
inline double LearningRateScale(int64_t step, int64_t steps) {
  const double warmup = static_cast<double>(std::max<int64_t>(1, steps / 10));
  const double at = static_cast<double>(step);
  if (at <= warmup) return at / warmup;
  const double progress = (at - warmup) / std::max(1.0, static_cast<double>(steps) - warmup);
  return 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * progress));
}

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_SCHEDULE_H_
