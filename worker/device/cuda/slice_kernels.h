// The arithmetic that collectives of a GPU enqueue: what host::ReduceSlices and its kin do on the
// CPU, to the same bits.
//
//   NCCL brings the slices of all ranks ──► Reduce sums them in rank order, in the sum's dtype
//
// Everything here only enqueues on the stream and returns; what is passed lives until the stream
// has run it, except `inputs`, which is read at once. Pointers are addresses of the device. Counts
// are ELEMENTS. Errors: those of a launch (see cuda_error.h). Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_SLICE_KERNELS_H_
#define TESSERA_WORKER_DEVICE_CUDA_SLICE_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "layout/dtype.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/host/kernels.h"

namespace tessera {

// As many inputs as fit into the arguments of a kernel.
inline constexpr int kMaxSlices = 256;

enum class SliceOp : uint8_t { kSum, kMax, kMin };

class SliceKernels {
 public:
  virtual ~SliceKernels() = default;

  // See host::ReduceSlices. `stats`, if not null, is in pinned memory, and what was written is
  // added to it: it is cleared by whoever begins a sum of several calls.
  virtual absl::Status Reduce(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                              DType input_dtype, int64_t count, double scale, bool accumulate,
                              host::SumOutput output, host::GradientStats* stats) = 0;

  // output[i] = inputs[0][i] op inputs[1][i] op ...; kFp32 or kFp64. A NaN makes the result NaN.
  virtual absl::Status Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                               DType dtype, SliceOp op, int64_t count, void* output) = 0;

  // values[i] *= factor, rounded in the dtype: kFp32 or kFp64.
  virtual absl::Status Scale(CudaStreamHandle* stream, void* values, DType dtype, int64_t count,
                             double factor) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_SLICE_KERNELS_H_
