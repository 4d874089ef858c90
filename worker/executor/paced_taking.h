// A thread that takes a version for a save waits here before each piece, as the save's pace says
// (save_pace.h); it no longer waits once somebody waits for the save or cancels it.
//
// AwaitTurn, Took and SinceTaken are the taking thread's; the rest is thread-safe, except for
// Begin, during which no other call may run.
#ifndef TESSERA_WORKER_EXECUTOR_PACED_TAKING_H_
#define TESSERA_WORKER_EXECUTOR_PACED_TAKING_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/executor/save_pace.h"

namespace tessera {

class PacedTaking {
 public:
  // Since some time, and never backwards.
  using Clock = absl::Duration (*)();

  explicit PacedTaking(Clock clock) : clock_(clock) {}

  // The save begins now. `stopped` and `cancelled` give the save up; the latter may be null.
  // They are not owned and outlive the taking.
  void Begin(const SavePace& pace, const std::atomic<bool>* stopped,
             const std::atomic<bool>* cancelled);
  void AwaitTurn();
  void Took(int64_t bytes);
  absl::Duration SinceTaken() const { return clock_() - took_at_; }
  // The step after the version is voted for. Returns how long until the rest must be copied.
  absl::Duration StepVoted();
  void Hurry();
  // Whether AwaitTurn waits at the moment; for tests.
  bool is_waiting() const { return is_waiting_.load(); }

 private:
  bool GoesOn() const {
    return !stopped_->load() && (cancelled_ == nullptr || !cancelled_->load());
  }

  const Clock clock_;
  const std::atomic<bool>* stopped_ = nullptr;
  const std::atomic<bool>* cancelled_ = nullptr;
  std::atomic<bool> is_waiting_{false};
  absl::Duration took_at_;
  absl::Mutex mu_;
  bool hurries_ ABSL_GUARDED_BY(mu_) = false;
  SavePace pace_ ABSL_GUARDED_BY(mu_);
  absl::Duration began_at_ ABSL_GUARDED_BY(mu_);
  absl::Duration paused_ ABSL_GUARDED_BY(mu_);  // But for a pause that is not over,
  absl::Duration pauses_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  int64_t pause_from_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t taken_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_PACED_TAKING_H_
