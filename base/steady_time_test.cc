#include "base/steady_time.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(SteadyTimeTest, NeverGoesBack) {
  absl::Time last = SteadyNow();
  for (int i = 0; i < 10'000; ++i) {
    const absl::Time now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SteadyTimeTest, WaitEndsWithItsConditionLongBeforeItsDeadline) {
  absl::Mutex mu;
  bool done = false;
  std::thread other([&] {
    absl::MutexLock lock(&mu);
    done = true;
  });
  {
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(AwaitWithTimeout(&mu, absl::Condition(&done), absl::Hours(1)));
  }
  other.join();
}

TEST(SteadyTimeTest, WaitThatNobodyEndsReturnsFalseNoEarlierThanItsDeadline) {
  absl::Mutex mu;
  bool never = false;
  absl::MutexLock lock(&mu);
  for (const absl::Duration timeout :
       {absl::Nanoseconds(-1), absl::ZeroDuration(), absl::Nanoseconds(1), absl::Microseconds(50),
        absl::Milliseconds(5)}) {
    const absl::Time began = SteadyNow();
    EXPECT_FALSE(AwaitWithTimeout(&mu, absl::Condition(&never), timeout));
    EXPECT_GE(SteadyNow() - began, timeout);
  }
  EXPECT_FALSE(AwaitWithDeadline(&mu, absl::Condition(&never), absl::InfinitePast()));
}

TEST(SteadyTimeTest, DeadlinesFarAheadAreWaitedFor) {
  absl::Mutex mu;
  bool done = false;
  for (const absl::Time deadline :
       {absl::InfiniteFuture(), SteadyNow() + absl::Hours(1e9), absl::FromUnixSeconds(1LL << 40)}) {
    done = false;
    std::thread other([&] {
      absl::MutexLock lock(&mu);
      done = true;
    });
    {
      absl::MutexLock lock(&mu);
      EXPECT_TRUE(AwaitWithDeadline(&mu, absl::Condition(&done), deadline));
    }
    other.join();
  }
}

TEST(SteadyTimeTest, ForkedProcessWaitsToo) {
  absl::Mutex mu;
  bool never = false;
  absl::MutexLock lock(&mu);
  EXPECT_FALSE(AwaitWithTimeout(&mu, absl::Condition(&never), absl::Milliseconds(1)));
  const pid_t child = fork();
  if (child == 0) {
    absl::Mutex own;
    absl::MutexLock own_lock(&own);
    for (int i = 0; i < 3; ++i)
      AwaitWithTimeout(&own, absl::Condition(&never), absl::Milliseconds(1));
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_FALSE(AwaitWithTimeout(&mu, absl::Condition(&never), absl::Milliseconds(1)));
}

// Deadlines that pass just when the mutex is taken by others, and by waiters that begin to wait.
TEST(SteadyTimeTest, ManyShortWaitsOnABusyMutexAllEnd) {
  absl::Mutex mu;
  bool never = false;
  std::atomic<int> running = 8;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&, i] {
      absl::MutexLock lock(&mu);
      for (int k = 0; k < 200; ++k) {
        EXPECT_FALSE(
            AwaitWithTimeout(&mu, absl::Condition(&never), absl::Microseconds((i * 200 + k) % 97)));
      }
      --running;
    });
  }
  std::thread busy([&] {
    while (running > 0) absl::MutexLock lock(&mu);
  });
  for (std::thread& waiter : waiters) waiter.join();
  busy.join();
}

}  // namespace
}  // namespace tessera
