#include "base/clock.h"

#include "base/steady_time.h"

namespace tessera {
namespace {

class RealClock : public Clock {
 public:
  absl::Time TimeNow() override { return SteadyNow(); }
  bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition,
                         absl::Time deadline) override ABSL_SHARED_LOCKS_REQUIRED(mu) {
    return tessera::AwaitWithDeadline(mu, condition, deadline);
  }
};

// How often a simulated wait looks at the simulated time again.
constexpr absl::Duration kSimulatedPoll = absl::Milliseconds(1);

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

absl::Time SimulatedClock::TimeNow() {
  absl::MutexLock lock(&mu_);
  return now_;
}

void SimulatedClock::AdvanceTime(absl::Duration by) {
  absl::MutexLock lock(&mu_);
  now_ += by;
}

bool SimulatedClock::AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition,
                                       absl::Time deadline) {
  while (TimeNow() < deadline) {
    if (AwaitWithTimeout(mu, condition, kSimulatedPoll)) return true;
  }
  return condition.Eval();
}

}  // namespace tessera
