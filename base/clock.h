// Time as a dependency. Logic takes `now` as an argument; what waits takes a Clock.
//
// RealClock is thread-safe. SimulatedClock is thread-safe and moves only when it is told to.
#ifndef TESSERA_BASE_CLOCK_H_
#define TESSERA_BASE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back. The real clock's is near the wall's, as SteadyNow() of steady_time.h says.
  virtual absl::Time TimeNow() = 0;

  // Waits on `condition` with `mu` held until it is true or `deadline` has passed on this clock;
  // returns whether it is true.
  virtual bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition,
                                 absl::Time deadline) ABSL_SHARED_LOCKS_REQUIRED(mu) = 0;

  static Clock* Real();  // Never destroyed.
};

class SimulatedClock : public Clock {
 public:
  explicit SimulatedClock(absl::Time start) : now_(start) {}

  absl::Time TimeNow() override;
  // Polls the simulated time; returns as soon as either the condition holds or time was advanced
  // to the deadline.
  bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition,
                         absl::Time deadline) override ABSL_SHARED_LOCKS_REQUIRED(mu);
  void AdvanceTime(absl::Duration by);

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_BASE_CLOCK_H_
