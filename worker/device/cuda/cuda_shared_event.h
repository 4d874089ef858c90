// SharedEvent over CUDA's events between processes.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_

#include <memory>

#include "worker/device/cuda/cuda_context.h"
#include "worker/device/shared_event.h"

namespace tessera {

class CudaSharedEvent : public SharedEvent {
 public:
  // `context` outlives the event. Errors: ResourceExhausted  none is left; Unimplemented  the
  // device has no such events; Internal, Unavailable  see cuda_error.h
  static absl::StatusOr<std::unique_ptr<CudaSharedEvent>> Create(PrimaryContext* context);
  // Errors: Unavailable  nobody has it, or it is of this very process
  static absl::StatusOr<std::unique_ptr<CudaSharedEvent>> Open(PrimaryContext* context,
                                                               const SharedEventName& name);
  ~CudaSharedEvent() override;

  absl::StatusOr<bool> Query() override;
  const SharedEventName& name() const override { return name_; }
  CudaEventHandle* handle() const { return handle_; }

 private:
  CudaSharedEvent(PrimaryContext* context, CudaEventHandle* handle)
      : context_(context), handle_(handle) {}

  PrimaryContext* const context_;
  CudaEventHandle* const handle_;
  SharedEventName name_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_SHARED_EVENT_H_
