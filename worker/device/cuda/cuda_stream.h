// Stream and Event over CUDA. Host work runs on a thread of the stream's own:
//
//   stream        ──kernel──[notify 7]──[wait until word >= 7]──kernel──►
//                               │                  ▲
//   host thread                 └──► work 7 ──word = 7
//
// So work may block, and may take as long as it likes, without holding up other streams: the
// driver's own host functions share a thread, and here they only count. It may call CUDA, but not
// free memory of the device: that may wait for all streams, this one among them.
//
// Errors go to the context (see PrimaryContext::status). Once it is broken the stream runs nothing,
// and host work that is left runs at Synchronize or in the destructor, so that nobody waits for it
// in vain; results are void then. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/event.h"
#include "worker/device/stream.h"

namespace tessera {

class CudaEvent : public Event {
 public:
  // Errors: ResourceExhausted  no event can be made.  Internal, Unavailable  see cuda_error.h
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(PrimaryContext* context);
  ~CudaEvent() override;
  // An event of a broken context counts as reached.
  bool Query() override;
  void Synchronize() override;
  CudaEventHandle* handle() const { return handle_; }

 private:
  CudaEvent(PrimaryContext* context, CudaEventHandle* handle)
      : context_(context), handle_(handle) {}
  PrimaryContext* const context_;
  CudaEventHandle* const handle_;
};

class CudaStream : public Stream {
 public:
  // Errors: ResourceExhausted  no stream, no pinned word or no thread can be made; nothing is left
  //         Internal, Unavailable  see cuda_error.h
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(PrimaryContext* context,
                                                            absl::string_view name, int priority);
  ~CudaStream() override;

  void Enqueue(absl::AnyInvocable<void()> work) override ABSL_LOCKS_EXCLUDED(issue_mu_, mu_);
  void Record(Event* event) override;
  void Wait(Event* event) override;
  void Synchronize() override ABSL_LOCKS_EXCLUDED(mu_);
  CudaStreamHandle* handle() const { return handle_; }
  PrimaryContext* context() const { return context_; }

 private:
  explicit CudaStream(PrimaryContext* context) : context_(context) {}
  static void Notify(void* stream);  // By the driver, in the order of the stream.
  absl::Status Issue(uint32_t ticket);
  void RunHostWork() ABSL_LOCKS_EXCLUDED(mu_);
  void RunWhatIsLeft(bool synchronized) ABSL_LOCKS_EXCLUDED(mu_);

  PrimaryContext* const context_;
  CudaStreamHandle* handle_ = nullptr;
  uint32_t* word_ = nullptr;  // Pinned. The ticket of the last host work that is done.
  std::thread thread_;
  // Keeps tickets in the order of the stream. Held over calls of the driver, which may wait for
  // Notify: so that takes only mu_. Order: issue_mu_, mu_.
  absl::Mutex issue_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  uint32_t last_ticket_ ABSL_GUARDED_BY(issue_mu_) = 0;
  absl::Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> works_ ABSL_GUARDED_BY(mu_);
  int64_t due_ ABSL_GUARDED_BY(mu_) = 0;  // Works at the front of works_ that the stream reached.
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // Run all works without waiting for the stream.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_STREAM_H_
