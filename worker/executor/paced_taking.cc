#include "worker/executor/paced_taking.h"

#include <algorithm>

#include "base/steady_time.h"

namespace tessera {
namespace {

// Nobody says when a save is given up.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

}  // namespace

void PacedTaking::Begin(const SavePace& pace, const std::atomic<bool>* stopped,
                        const std::atomic<bool>* cancelled) {
  stopped_ = stopped;
  cancelled_ = cancelled;
  absl::MutexLock lock(&mu_);
  hurries_ = false;
  pace_ = pace;
  began_at_ = clock_();
  took_at_ = began_at_;
  paused_ = absl::ZeroDuration();
  pauses_since_ = absl::InfiniteDuration();
  pause_from_bytes_ = 0;
  taken_bytes_ = 0;
}

void PacedTaking::AwaitTurn() {
  absl::MutexLock lock(&mu_);
  if (taken_bytes_ < pause_from_bytes_) return;
  pauses_since_ = clock_();
  while (!hurries_ && GoesOn()) {
    const absl::Duration left = began_at_ + pace_.NotBefore(taken_bytes_) - clock_();
    if (left <= absl::ZeroDuration()) break;
    is_waiting_.store(true);
    AwaitWithTimeout(&mu_, absl::Condition(&hurries_), std::min(left, kLookAgain));
  }
  is_waiting_.store(false);
  paused_ += clock_() - pauses_since_;
  pauses_since_ = absl::InfiniteDuration();
  pause_from_bytes_ = taken_bytes_ + pace_.grain_bytes();
}

void PacedTaking::Took(int64_t bytes) {
  took_at_ = clock_();
  absl::MutexLock lock(&mu_);
  taken_bytes_ += bytes;
}

absl::Duration PacedTaking::StepVoted() {
  absl::MutexLock lock(&mu_);
  const absl::Duration now = clock_() - began_at_;
  const absl::Duration pause = std::max(began_at_ + now - pauses_since_, absl::ZeroDuration());
  return pace_.StepVoted(now, taken_bytes_, now - paused_ - pause) - now;
}

void PacedTaking::Hurry() {
  absl::MutexLock lock(&mu_);
  pace_.Hurry();
  hurries_ = true;
}

}  // namespace tessera
