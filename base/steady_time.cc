#include "base/steady_time.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/start_thread.h"

namespace tessera {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Times of the steady clock are written as absl::Time, counted from one moment of the wall clock.
struct Origin {
  absl::Time wall = absl::Now();
  SteadyClock::time_point steady = SteadyClock::now();
};

const Origin& ProcessOrigin() {
  static const Origin origin;
  return origin;
}

SteadyClock::time_point AsSteady(absl::Time time) {
  return ProcessOrigin().steady + absl::ToChronoNanoseconds(time - ProcessOrigin().wall);
}

// How soon a mutex is tried again whose holder may have looked at the time just before.
constexpr std::chrono::milliseconds kAgain(1);
// Nothing waits longer; more would be too much for the clock's number.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// Ends waits on mutexes whose deadline has passed. absl waits by the wall clock, so no timed wait
// of its own is used: a thread locks the mutex at the deadline, and lets go, which makes absl check
// its waiters' conditions. If the mutex is held just then it tries again, so it never waits for a
// mutex of others.
class Alarms {
 public:
  struct Alarm {
    absl::Mutex* mu;
    std::multimap<SteadyClock::time_point, Alarm*>::iterator at;
  };

  // The alarm and its mutex, which is held, stay alive until Clear(). False: no thread could be
  // created, and there is no alarm.
  bool Set(Alarm* alarm, SteadyClock::time_point deadline) {
    std::lock_guard<std::mutex> lock(mu_);
    if (!is_running_) {
      absl::StatusOr<std::thread> thread = StartThread("timed waits", [this] { Run(); });
      if (!thread.ok()) return false;
      thread->detach();
      is_running_ = true;
      // A forked process has the alarms of threads that it has not, and not the thread that keeps
      // them.
      static const int registered = pthread_atfork(&BeforeFork, &InParent, &InChild);
      (void)registered;
    }
    alarm->at = alarmed_.emplace(deadline, alarm);
    // The thread sleeps until the first deadline, which is another one now.
    if (alarm->at == alarmed_.begin()) earlier_.notify_one();
    return true;
  }
  void Clear(Alarm* alarm) {
    std::lock_guard<std::mutex> lock(mu_);
    alarmed_.erase(alarm->at);
  }

 private:
  static void BeforeFork();
  static void InParent();
  static void InChild();

  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      if (alarmed_.empty()) {
        earlier_.wait(lock);
        continue;
      }
      const SteadyClock::time_point first = alarmed_.begin()->first;
      if (SteadyClock::now() < first) {
        earlier_.wait_until(lock, first);
        continue;
      }
      Alarm* const alarm = alarmed_.begin()->second;
      alarmed_.erase(alarmed_.begin());
      // Set again until its waiter takes it off: the lock below may fail.
      alarm->at = alarmed_.emplace(SteadyClock::now() + kAgain, alarm);
      // Its waiter does not pass Clear() meanwhile, so the mutex is there.
      if (alarm->mu->TryLock()) alarm->mu->Unlock();
    }
  }

  std::mutex mu_;
  std::condition_variable earlier_;
  std::multimap<SteadyClock::time_point, Alarm*> alarmed_;
  bool is_running_ = false;
};

Alarms*& InstanceOfProcess() {
  static Alarms* alarms = new Alarms;
  return alarms;
}

Alarms& ProcessAlarms() { return *InstanceOfProcess(); }

void Alarms::BeforeFork() { ProcessAlarms().mu_.lock(); }
void Alarms::InParent() { ProcessAlarms().mu_.unlock(); }
// Others, with no alarm and no thread. Those of the parent are left: a thread waited on their
// condition variable that is not here, and glibc would wait for it.
void Alarms::InChild() { InstanceOfProcess() = new Alarms; }

}  // namespace

absl::Time SteadyNow() {
  const Origin& origin = ProcessOrigin();
  return origin.wall + absl::FromChrono(SteadyClock::now() - origin.steady);
}

absl::Time WallNow() { return absl::Now(); }

std::chrono::system_clock::time_point GrpcDeadline(absl::Time steady) {
  if (steady == absl::InfiniteFuture()) return std::chrono::system_clock::time_point::max();
  // gRPC takes wall times, so only the distance counts.
  return absl::ToChronoTime(WallNow() + (steady - SteadyNow()));
}

bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& condition, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    mu->Await(condition);
    return true;
  }
  // Before an alarm is set: most conditions hold at once.
  if (condition.Eval()) return true;
  if (SteadyNow() >= deadline) return false;
  struct Wait {
    const absl::Condition& condition;
    const absl::Time deadline;
    bool is_over() const { return condition.Eval() || SteadyNow() >= deadline; }
  };
  const Wait wait = {condition, deadline};
  Alarms::Alarm alarm = {mu, {}};
  const absl::Time now = SteadyNow();
  if (!ProcessAlarms().Set(&alarm, AsSteady(std::min(deadline, now + kLongest))))
    // Without a thread for alarms absl's own wait has to do, by the wall clock.
    return mu->AwaitWithTimeout(condition, deadline - now);
  mu->Await(absl::Condition(&wait, &Wait::is_over));
  ProcessAlarms().Clear(&alarm);
  return condition.Eval();
}

bool AwaitWithTimeout(absl::Mutex* mu, const absl::Condition& condition, absl::Duration timeout) {
  return AwaitWithDeadline(mu, condition, SteadyNow() + timeout);
}

}  // namespace tessera
