// A clock that cannot be set: for deadlines, and for comparisons with other times of this process.
//
// The wall clock is set back and forth, by people and by NTP; absl::Now(), and absl's timed waits,
// go with it. What is here does not. tools/check-layers refuses the others.
//
// Thread-safe.
#ifndef TESSERA_BASE_STEADY_TIME_H_
#define TESSERA_BASE_STEADY_TIME_H_

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

// The wall clock's time when this process first asked, and from then on as the monotonic clock
// goes. Means nothing to another process.
absl::Time SteadyNow();

// The wall clock, for stamps that a person or another process reads.
absl::Time WallNow();

// As gRPC takes deadlines: of the wall clock, and kept by the monotonic one once a call has
// started.
std::chrono::system_clock::time_point GrpcDeadline(absl::Time steady);

// As the methods of absl::Mutex of these names, by SteadyNow(). `condition` is looked at when
// somebody lets go of `mu`.
bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition, absl::Time deadline)
    ABSL_SHARED_LOCKS_REQUIRED(mu);
bool AwaitWithTimeout(absl::Mutex* mu, const absl::Condition& condition, absl::Duration timeout)
    ABSL_SHARED_LOCKS_REQUIRED(mu);

// As absl::Notification, with waits by SteadyNow(). Thread-safe.
class SteadyNotification {
 public:
  void Notify() {
    absl::MutexLock lock(&mu_);
    notified_ = true;
  }
  // Whether it was notified in time.
  bool WaitWithTimeout(absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    return AwaitWithTimeout(&mu_, absl::Condition(&notified_), timeout);
  }

 private:
  absl::Mutex mu_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_BASE_STEADY_TIME_H_
