// Waiting on a 32-bit word of shared memory: between threads, or between processes that map it.
//
//   writer:  fill the data;  Publish(&word, 7);
//   waiter:  WaitUntil(word, value is 7, abort, deadline);  read the data
//
// A wait checks, spins (if the policy says so), yields about 50 times, unless one yield takes long,
// then sleeps on a futex in slices. It ends when the predicate holds, when the abort flag is
// raised, or at the deadline, so it also ends if the writer died between its store and its wake-up.
// What was written before Publish is visible after WaitUntil. Thread-safe; words start at zero, as
// fresh mappings do.
#ifndef TESSERA_SHM_WAIT_WORD_H_
#define TESSERA_SHM_WAIT_WORD_H_

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

// A word that ends waits. It only grows; it is raised for its watchers once it is at least
// `raised_at`. A default one is never raised.
class AbortFlag {
 public:
  AbortFlag() = default;
  explicit AbortFlag(const std::atomic<uint32_t>* word, uint32_t raised_at = 1)
      : word_(word), raised_at_(raised_at) {}

  bool raised() const {
    return word_ != nullptr && word_->load(std::memory_order_acquire) >= raised_at_;
  }

 private:
  const std::atomic<uint32_t>* word_ = nullptr;
  uint32_t raised_at_ = 1;
};

// How to wait before sleeping. Spinning only helps while every party has a core to itself.
struct WaitPolicy {
  int spins = 0;    // Checks with a pause between them.
  int yields = 50;  // Checks with a sched_yield between them.

  // Spins if `num_parties` that wait for each other fit on this host's cores.
  static WaitPolicy ForParties(int num_parties);
};

// A word and the number of its sleepers, so that a Publish that nobody sleeps for makes no system
// call. A sleeper that is killed stays counted: that costs system calls, never a lost wake-up.
struct WaitWord {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};
};

// Waits until `predicate(word)` holds. The predicate must stay cheap: it runs at each check.
// Errors: Aborted           the flag was raised; a predicate that holds wins over it
//         DeadlineExceeded  the deadline passed (measured on the steady clock from the call on)
absl::Status WaitUntil(const std::atomic<uint32_t>& word,
                       absl::FunctionRef<bool(uint32_t)> predicate, const AbortFlag& abort,
                       absl::Time deadline, WaitPolicy policy = WaitPolicy());
absl::Status WaitUntil(WaitWord* word, absl::FunctionRef<bool(uint32_t)> predicate,
                       const AbortFlag& abort, absl::Time deadline,
                       WaitPolicy policy = WaitPolicy());

// Stores `value` with release order and wakes all waiters of the word. A WaitWord is published
// and waited for through its own overloads only.
void Publish(std::atomic<uint32_t>* word, uint32_t value);
void Publish(WaitWord* word, uint32_t value);

// Adds one to an event counter, with release order, and wakes the waiters. For words with several
// writers; a word is either bumped or published.
void Bump(WaitWord* word);

// Waits until the word differs from `seen`, at most until the deadline.
void WaitForChange(WaitWord* word, uint32_t seen, absl::Time deadline,
                   WaitPolicy policy = WaitPolicy());

// Wakes all sleepers of `word` to look at their predicate and abort flag: call it after raising a
// flag. One that is just falling asleep looks again after a slice, at most 20 milliseconds.
void WakeAll(const std::atomic<uint32_t>& word);

}  // namespace tessera

#endif  // TESSERA_SHM_WAIT_WORD_H_
