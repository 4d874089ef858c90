#include "worker/engine/epoch_interrupt.h"

#include "base/steady_time.h"

namespace tessera {
namespace {

// Between the end of a peer's epoch and the worker's word about it.
constexpr absl::Duration kReasonTimeout = absl::Seconds(5);

}  // namespace

void EpochInterrupt::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (stop_reason_.ok()) stop_reason_ = reason;
  }
  // After the reason is stored, so that Check finds it once the flag is up.
  Raise();
}

bool EpochInterrupt::Leave() {
  {
    absl::MutexLock lock(&mu_);
    // An executor that was stopped, or whose stream failed, has an error to report and may not
    // leave.
    if (!stop_reason_.ok() || !stream_status_.ok()) return false;
    // Under the lock of the look above: a Stop that comes meanwhile finds a reason, and changes
    // nothing.
    stop_reason_ = absl::AbortedError("the executor left");
    left_.store(true);
  }
  Raise();
  return true;
}

void EpochInterrupt::StreamFailed(const absl::Status& error) {
  {
    absl::MutexLock lock(&mu_);
    if (stream_status_.ok()) stream_status_ = error;
  }
  // The first error is the cause. Later ones follow from it.
  Raise();
}

void EpochInterrupt::Raise() {
  raised_.store(1, std::memory_order_release);
  // A wake-up may be missed by a wait that is just beginning: it looks again after a slice.
  WakeAll(submitted_->value);
}

absl::Status EpochInterrupt::Check() const {
  // The flag alone is read on the common path, which takes no lock.
  if (!is_raised()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return stop_reason_.ok() ? stream_status_ : stop_reason_;
}

absl::Status EpochInterrupt::stream_status() const {
  absl::MutexLock lock(&mu_);
  return stream_status_;
}

absl::Status EpochInterrupt::AwaitReason(const absl::Status& status) const {
  absl::MutexLock lock(&mu_);
  const auto told = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !stop_reason_.ok(); };
  // A peer's failure may be seen before the worker says why. Its reason is the better one, but it
  // is waited for only so long.
  return AwaitWithTimeout(&mu_, absl::Condition(&told), kReasonTimeout) ? stop_reason_ : status;
}

}  // namespace tessera
