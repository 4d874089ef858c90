// What a GPU's RankDevice offers to code that uses CUDA itself: dynamic_cast to this.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_BACKEND_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/slice_kernels.h"

namespace tessera {

class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  virtual CudaDevice* cuda_device() = 0;
  // `max_count`: ELEMENTS that are measured at once. Errors: those of CudaDevice::Allocate
  virtual absl::StatusOr<std::unique_ptr<SliceKernels>> CreateSliceKernels(int64_t max_count) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_BACKEND_H_
