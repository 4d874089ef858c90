// A stream run by one thread of its own, which sleeps while idle.
//
//   callers ──► pending_ ──(swap)──► running, on the thread
//
// The thread takes all pending work at once, so a busy stream locks once per batch and allocates
// nothing in the long run. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_HOST_HOST_STREAM_H_
#define TESSERA_WORKER_DEVICE_HOST_HOST_STREAM_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/stream.h"

namespace tessera {

class HostStream : public Stream {
 public:
  // Errors: ResourceExhausted  its thread cannot be made.
  static absl::StatusOr<std::unique_ptr<HostStream>> Create(absl::string_view name);
  ~HostStream() override;

  void Enqueue(absl::AnyInvocable<void()> work) override ABSL_LOCKS_EXCLUDED(mu_);
  void Record(Event* event) override;
  void Wait(Event* event) override;
  void Synchronize() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  HostStream() = default;
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::vector<absl::AnyInvocable<void()>> pending_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t enqueued_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;  // Of enqueued_; moves batch by batch.
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_HOST_STREAM_H_
