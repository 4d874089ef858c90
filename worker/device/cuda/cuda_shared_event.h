// SharedEvent over CUDA's events between processes.
//
// CUDA opens no event in the process that made it. Where trainer and executor are one process, the
// event is found among those that this process made, and is the same one, until its maker destroys
// it. Thread-safe between a maker's and others' of the same event.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "shm/shared_event.h"
#include "worker/device/cuda/cuda_context.h"

namespace tessera {

class CudaSharedEvent : public SharedEvent {
 public:
  // `context` outlives the event. Errors: ResourceExhausted  none is left; Unimplemented  the
  // device has no such events; Internal, Unavailable  see cuda_error.h
  static absl::StatusOr<std::unique_ptr<CudaSharedEvent>> Create(PrimaryContext* context);
  // Errors: Unavailable  nobody has it (any more)
  static absl::StatusOr<std::unique_ptr<CudaSharedEvent>> Open(PrimaryContext* context,
                                                               const SharedEventName& name);
  ~CudaSharedEvent() override;

  absl::StatusOr<bool> Query() override;
  const SharedEventName& name() const override { return name_; }
  // Of one that no other object of this process has.
  CudaEventHandle* handle() const { return handle_; }

 private:
  // An event that this process made, to be opened in this process.
  struct Made {
    explicit Made(CudaEventHandle* handle) : handle(handle) {}
    absl::Mutex mu;
    CudaEventHandle* handle ABSL_GUARDED_BY(mu);  // Null: destroyed.
  };
  class Registry;

  CudaSharedEvent(PrimaryContext* context, CudaEventHandle* handle)
      : context_(context), handle_(handle) {}
  absl::StatusOr<bool> QueryHandle(CudaEventHandle* handle);

  PrimaryContext* const context_;
  CudaEventHandle* const handle_;  // Null: that of `made_`, which is another object's.
  SharedEventName name_;
  std::shared_ptr<Made> made_;  // Null: another process made it.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_
