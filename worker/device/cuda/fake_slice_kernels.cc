#include "worker/device/cuda/fake_slice_kernels.h"

#include <vector>

namespace tessera {

absl::Status FakeSliceKernels::Reduce(CudaStreamHandle* stream,
                                      absl::Span<const void* const> inputs, ElementType input,
                                      int64_t count, double scale, bool accumulate,
                                      host::SumOutput output, host::GradientStats* stats) {
  const std::vector<const void*> from(inputs.begin(), inputs.end());
  api_->RunOnStream(stream, [=] {
    host::GradientStats measured;
    host::SumElements(from, input, count, scale, accumulate, output,
                      stats == nullptr ? nullptr : &measured);
    if (stats == nullptr) return;
    stats->sum_of_squares += measured.sum_of_squares;
    stats->non_finite = stats->non_finite || measured.non_finite;
  });
  return absl::OkStatus();
}

absl::Status FakeSliceKernels::Combine(CudaStreamHandle* stream,
                                       absl::Span<const void* const> inputs, ElementType type,
                                       ReduceOp op, double scale, int64_t count, void* output) {
  const std::vector<const void*> from(inputs.begin(), inputs.end());
  api_->RunOnStream(stream, [=] { host::CombineElements(from, type, op, scale, count, output); });
  return absl::OkStatus();
}

}  // namespace tessera
