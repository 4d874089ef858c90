#include "worker/device/cuda/fake_slice_kernels.h"

#include <vector>

namespace tessera {
namespace {

template <typename Real>
Real CombineTwo(SliceOp op, Real a, Real b) {
  if (op == SliceOp::kSum) return a + b;
  if (a != a) return a;
  if (op == SliceOp::kMax) return b > a || b != b ? b : a;
  return b < a || b != b ? b : a;
}

template <typename Real>
void CombineAll(const std::vector<const void*>& inputs, SliceOp op, int64_t count, void* output) {
  for (int64_t i = 0; i < count; ++i) {
    Real value = static_cast<const Real*>(inputs[0])[i];
    for (size_t r = 1; r < inputs.size(); ++r) {
      value = CombineTwo(op, value, static_cast<const Real*>(inputs[r])[i]);
    }
    static_cast<Real*>(output)[i] = value;
  }
}

template <typename Real>
void ScaleAll(void* values, int64_t count, Real factor) {
  for (int64_t i = 0; i < count; ++i) static_cast<Real*>(values)[i] *= factor;
}

}  // namespace

absl::Status FakeSliceKernels::Reduce(CudaStreamHandle* stream,
                                      absl::Span<const void* const> inputs, DType input_dtype,
                                      int64_t count, double scale, bool accumulate,
                                      host::SumOutput output, host::GradientStats* stats) {
  const std::vector<const void*> from(inputs.begin(), inputs.end());
  api_->RunOnStream(stream, [=] {
    host::GradientStats measured;
    host::ReduceSlices(from, input_dtype, count, scale, accumulate, output,
                       stats == nullptr ? nullptr : &measured);
    if (stats == nullptr) return;
    stats->sum_of_squares += measured.sum_of_squares;
    stats->non_finite = stats->non_finite || measured.non_finite;
  });
  return absl::OkStatus();
}

absl::Status FakeSliceKernels::Combine(CudaStreamHandle* stream,
                                       absl::Span<const void* const> inputs, DType dtype,
                                       SliceOp op, int64_t count, void* output) {
  const std::vector<const void*> from(inputs.begin(), inputs.end());
  api_->RunOnStream(stream, [=] {
    if (dtype == DType::kFp64) {
      CombineAll<double>(from, op, count, output);
    } else {
      CombineAll<float>(from, op, count, output);
    }
  });
  return absl::OkStatus();
}

absl::Status FakeSliceKernels::Scale(CudaStreamHandle* stream, void* values, DType dtype,
                                     int64_t count, double factor) {
  api_->RunOnStream(stream, [=] {
    if (dtype == DType::kFp64) {
      ScaleAll<double>(values, count, factor);
    } else {
      ScaleAll<float>(values, count, static_cast<float>(factor));
    }
  });
  return absl::OkStatus();
}

}  // namespace tessera
