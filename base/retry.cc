#include "base/retry.h"

#include <algorithm>

namespace tessera {

absl::Duration RetryDelay(const RetryOptions& options, int attempt, double uniform) {
  absl::Duration delay = options.initial;
  // Ends at the maximum, so that large attempts do not overflow.
  for (int i = 0; i < attempt && delay < options.max; ++i) delay *= options.multiplier;
  delay = std::min(delay, options.max);
  // Spread, so that callers that failed together do not come back together.
  return delay * (1.0 + options.jitter * (2.0 * uniform - 1.0));
}

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace tessera
