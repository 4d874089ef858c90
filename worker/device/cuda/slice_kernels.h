// The arithmetic that collectives of a GPU enqueue: what kernels/element_reduce.h has for the CPU,
// to the same bits.
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
#include "kernels/element_reduce.h"
#include "kernels/kernels.h"
#include "layout/element_type.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

// As many inputs as fit into the arguments of a kernel.
inline constexpr int kMaxSlices = 256;

class SliceKernels {
 public:
  virtual ~SliceKernels() = default;

  // See host::SumElements. `stats`, if not null, is in pinned memory, and what was written is
  // added to it: clear it before the first of several calls.
  virtual absl::Status Reduce(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                              ElementType input, int64_t count, double scale, bool accumulate,
                              host::SumOutput output, host::GradientStats* stats) = 0;

  // See host::CombineElements.
  virtual absl::Status Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                               ElementType type, ReduceOp op, double scale, int64_t count,
                               void* output) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_SLICE_KERNELS_H_
