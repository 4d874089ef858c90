// Backoff arithmetic: a pure function of the attempt. No sleeping, no clock.
//
//   delay(attempt) = min(initial * multiplier^attempt, max), then spread by +-jitter
#ifndef TESSERA_BASE_RETRY_H_
#define TESSERA_BASE_RETRY_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

struct RetryOptions {
  absl::Duration initial = absl::Milliseconds(20);
  absl::Duration max = absl::Seconds(1);
  double multiplier = 2.0;
  double jitter = 0.2;  // A fraction of the delay, in [0, 1].
};

// The delay before try number `attempt` + 1, where `attempt` starts at 0. `uniform` in [0, 1)
// comes from the caller's random source, so that tests can fix it.
absl::Duration RetryDelay(const RetryOptions& options, int attempt, double uniform);

// Whether trying the same idempotent call again can help.
bool IsRetryable(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_BASE_RETRY_H_
