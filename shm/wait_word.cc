#include "shm/wait_word.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/steady_time.h"

namespace tessera {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "words are shared between processes");

// Bounds what a missing wake-up costs: a publisher may be killed between its store and its wake.
constexpr absl::Duration kSleepSlice = absl::Milliseconds(20);
constexpr int kSpins = 100;  // About 5 microseconds.
// A longer yield gave the core to a thread that computes: to stay runnable would cost a switch for
// each of its time slices, and counts as work where the kernel shares out the cores.
constexpr absl::Duration kLongYield = absl::Microseconds(200);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when woken, when the word no longer holds `expected`, after `timeout`, or on a signal.
// Not FUTEX_PRIVATE_FLAG, since processes share the word. The result does not matter: whatever
// ended the sleep, the caller looks at the word again.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, absl::Duration timeout) {
  const timespec relative = absl::ToTimespec(timeout);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

// The checks before the first sleep.
bool HoldsSoon(const std::atomic<uint32_t>& word, absl::FunctionRef<bool(uint32_t)> predicate,
               const AbortFlag& abort, WaitPolicy policy) {
  if (predicate(word.load(std::memory_order_acquire))) return true;
  for (int i = 0; i < policy.spins && !abort.raised(); ++i) {
    Pause();
    if (predicate(word.load(std::memory_order_acquire))) return true;
  }
  absl::Time before = policy.yields > 0 ? SteadyNow() : absl::Time();
  for (int i = 0; i < policy.yields && !abort.raised(); ++i) {
    sched_yield();
    if (predicate(word.load(std::memory_order_acquire))) return true;
    const absl::Time now = SteadyNow();
    if (now - before > kLongYield) return false;
    before = now;
  }
  return false;
}

absl::Status SleepUntil(const std::atomic<uint32_t>& word,
                        absl::FunctionRef<bool(uint32_t)> predicate, const AbortFlag& abort,
                        absl::Time deadline) {
  while (true) {
    const uint32_t value = word.load(std::memory_order_seq_cst);
    if (predicate(value)) return absl::OkStatus();
    if (abort.raised()) return absl::AbortedError("the wait was aborted");
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("the wait timed out");
    // With the value that was judged: a store in between makes the kernel return at once.
    FutexWait(word, value, std::min(left, kSleepSlice));
  }
}

}  // namespace

WaitPolicy WaitPolicy::ForParties(int num_parties) {
  static const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
  WaitPolicy policy;
  if (num_parties <= num_cores) policy.spins = kSpins;
  return policy;
}

absl::Status WaitUntil(const std::atomic<uint32_t>& word,
                       absl::FunctionRef<bool(uint32_t)> predicate, const AbortFlag& abort,
                       absl::Time deadline, WaitPolicy policy) {
  if (HoldsSoon(word, predicate, abort, policy)) return absl::OkStatus();
  return SleepUntil(word, predicate, abort, deadline);
}

// A sleeper counts itself, then looks at the word; a publisher stores the word, then looks at the
// count. Both in one total order, so at least one of them sees the other.
absl::Status WaitUntil(WaitWord* word, absl::FunctionRef<bool(uint32_t)> predicate,
                       const AbortFlag& abort, absl::Time deadline, WaitPolicy policy) {
  if (HoldsSoon(word->value, predicate, abort, policy)) return absl::OkStatus();
  word->sleepers.fetch_add(1, std::memory_order_seq_cst);
  absl::Status status = SleepUntil(word->value, predicate, abort, deadline);
  // A count that is too high for a moment costs a publisher one system call.
  word->sleepers.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

void Publish(std::atomic<uint32_t>* word, uint32_t value) {
  word->store(value, std::memory_order_release);
  WakeAll(*word);
}

void Publish(WaitWord* word, uint32_t value) {
  word->value.store(value, std::memory_order_seq_cst);
  if (word->sleepers.load(std::memory_order_seq_cst) != 0) WakeAll(word->value);
}

void Bump(WaitWord* word) {
  word->value.fetch_add(1, std::memory_order_seq_cst);
  if (word->sleepers.load(std::memory_order_seq_cst) != 0) WakeAll(word->value);
}

void WaitForChange(WaitWord* word, uint32_t seen, absl::Time deadline, WaitPolicy policy) {
  // Woken, late or interrupted: the caller looks at its own condition next.
  (void)WaitUntil(
      word, [seen](uint32_t value) { return value != seen; }, AbortFlag(), deadline, policy);
}

void WakeAll(const std::atomic<uint32_t>& word) {
  // All of them: each waits for a condition of its own.
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera
