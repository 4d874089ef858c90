#include "worker/device/host/host_event.h"

#include <algorithm>

namespace tessera {

bool HostEvent::Query() {
  absl::MutexLock lock(&mu_);
  return reached_ >= recorded_;
}

void HostEvent::Synchronize() { AwaitMark(LastMark()); }

int64_t HostEvent::NextMark() {
  absl::MutexLock lock(&mu_);
  return ++recorded_;
}

int64_t HostEvent::LastMark() {
  absl::MutexLock lock(&mu_);
  return recorded_;
}

void HostEvent::Reach(int64_t mark) {
  absl::MutexLock lock(&mu_);
  // Marks of two streams may be reached in another order.
  reached_ = std::max(reached_, mark);
}

void HostEvent::AwaitMark(int64_t mark) {
  absl::MutexLock lock(&mu_);
  const auto reached = [this, mark]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return reached_ >= mark; };
  mu_.Await(absl::Condition(&reached));
}

}  // namespace tessera
