// Event of a host stream: each record is a mark, which its stream reaches.
#ifndef TESSERA_WORKER_DEVICE_HOST_HOST_EVENT_H_
#define TESSERA_WORKER_DEVICE_HOST_HOST_EVENT_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/event.h"

namespace tessera {

class HostEvent : public Event {
 public:
  bool Query() override ABSL_LOCKS_EXCLUDED(mu_);
  void Synchronize() override ABSL_LOCKS_EXCLUDED(mu_);

  // For streams. A mark is a number that grows by one with each Record; 0 is always reached.
  int64_t NextMark() ABSL_LOCKS_EXCLUDED(mu_);
  int64_t LastMark() ABSL_LOCKS_EXCLUDED(mu_);
  void Reach(int64_t mark) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitMark(int64_t mark) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool IsReached(int64_t mark) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  int64_t recorded_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> under_way_ ABSL_GUARDED_BY(mu_);  // Few: marks that are not reached.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_HOST_EVENT_H_
