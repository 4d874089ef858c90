#include "worker/device/host/host_event.h"

#include <algorithm>

namespace tessera {

bool HostEvent::Query() {
  absl::MutexLock lock(&mu_);
  return IsReached(recorded_);
}

void HostEvent::Synchronize() { AwaitMark(LastMark()); }

int64_t HostEvent::NextMark() {
  absl::MutexLock lock(&mu_);
  under_way_.push_back(++recorded_);
  return recorded_;
}

int64_t HostEvent::LastMark() {
  absl::MutexLock lock(&mu_);
  return recorded_;
}

void HostEvent::Reach(int64_t mark) {
  absl::MutexLock lock(&mu_);
  // Marks of two streams may be reached in another order, and one says nothing of the other.
  under_way_.erase(std::remove(under_way_.begin(), under_way_.end(), mark), under_way_.end());
}

void HostEvent::AwaitMark(int64_t mark) {
  absl::MutexLock lock(&mu_);
  const auto reached = [this, mark]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return IsReached(mark); };
  mu_.Await(absl::Condition(&reached));
}

bool HostEvent::IsReached(int64_t mark) const {
  return std::find(under_way_.begin(), under_way_.end(), mark) == under_way_.end();
}

}  // namespace tessera
