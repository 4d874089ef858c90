// SliceKernels of a FakeCudaApi: the host's kernels, run in the order of the stream.
#ifndef TESSERA_WORKER_DEVICE_CUDA_FAKE_SLICE_KERNELS_H_
#define TESSERA_WORKER_DEVICE_CUDA_FAKE_SLICE_KERNELS_H_

#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/slice_kernels.h"

namespace tessera {

class FakeSliceKernels : public SliceKernels {
 public:
  explicit FakeSliceKernels(FakeCudaApi* api) : api_(api) {}
  absl::Status Reduce(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                      ElementType input, int64_t count, double scale, bool accumulate,
                      host::SumOutput output, host::GradientStats* stats) override;
  absl::Status Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                       ElementType type, ReduceOp op, double scale, int64_t count,
                       void* output) override;

 private:
  FakeCudaApi* const api_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_FAKE_SLICE_KERNELS_H_
