#include "worker/executor/paced_taking.h"

#include <algorithm>

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
  paused_ = absl::ZeroDuration();
  taken_bytes_ = 0;
}

void PacedTaking::AwaitTurn() {
  absl::MutexLock lock(&mu_);
  const absl::Duration from = clock_();
  while (!hurries_ && GoesOn()) {
    const absl::Duration left = began_at_ + pace_.NotBefore(taken_bytes_) - clock_();
    if (left <= absl::ZeroDuration()) break;
    is_waiting_.store(true);
    mu_.AwaitWithTimeout(absl::Condition(&hurries_), std::min(left, kLookAgain));
  }
  is_waiting_.store(false);
  paused_ += clock_() - from;
}

void PacedTaking::Took(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  taken_bytes_ += bytes;
}

absl::Duration PacedTaking::StepVoted() {
  absl::MutexLock lock(&mu_);
  const absl::Duration now = clock_() - began_at_;
  return pace_.StepVoted(now, taken_bytes_, now - paused_) - now;
}

void PacedTaking::Hurry() {
  absl::MutexLock lock(&mu_);
  pace_.Hurry();
  hurries_ = true;
}

}  // namespace tessera
