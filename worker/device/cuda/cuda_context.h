// The primary context of one device, which the runtime and NCCL share, and the first error that
// work on it has met.
//
// Streams and events return nothing to their caller, so what goes wrong in them is kept here: the
// first error stays and is logged, later ones are not. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_CONTEXT_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_CONTEXT_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

// Initialises the driver. `min_driver_version` as CUDA numbers versions.
// Errors: FailedPrecondition  the driver is older: the message names both versions
//         NotFound            no device, or none with this number: the message has their count
absl::Status CheckCudaDevice(CudaApi* api, int device, int min_driver_version);

// The number that the device has in this process: that of its UUID, where the name has one.
// Errors: NotFound  this process does not see it: the message has its UUID, its number where it was
//                   named, and what is seen
//         those of CheckCudaDevice
absl::StatusOr<int> FindCudaDevice(CudaApi* api, const DeviceName& device, int min_driver_version);

// `status`; where memory ran out, with the bytes that were wanted and those that are free. What is
// free is known where a context is current on this thread.
absl::Status NameWantedMemory(CudaApi* api, const absl::Status& status, int64_t wanted_bytes);

class PrimaryContext {
 public:
  // `api` outlives the context.
  // Errors: those of CheckCudaDevice
  //         ResourceExhausted   no memory for the context
  //         Unavailable         the device is not to be had
  static absl::StatusOr<std::unique_ptr<PrimaryContext>> Create(CudaApi* api, int device,
                                                                int min_driver_version);
  ~PrimaryContext();

  CudaApi* api() const { return api_; }
  int device() const { return device_; }
  const std::string& name() const { return name_; }  // "cuda:0"

  // Makes the context current on this thread. Before each call marked [ctx].
  absl::Status Use() const { return api_->CtxSetCurrent(context_); }

  // Keeps and logs the first error. Returns whether `status` is OK.
  bool Check(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // OK, or that error. Once it is not, results of this device are void.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PrimaryContext(CudaApi* api, int device);

  CudaApi* const api_;
  const int device_;
  const std::string name_;
  CudaContext* context_ = nullptr;
  mutable absl::Mutex mu_;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_CONTEXT_H_
