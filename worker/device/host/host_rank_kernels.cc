#include "worker/device/host/host_rank_kernels.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/norm_part.h"

namespace tessera {
namespace {

template <typename Real>
void Adam(const host::AdamParams& params, const UpdateArrays& a) {
  const auto in = [](const void* array) { return static_cast<const Real*>(array); };
  const auto out = [](void* array) { return static_cast<Real*>(array); };
  host::AdamStep(params, a.count, in(a.gradient), in(a.p_in), in(a.m_in), in(a.v_in), out(a.p_out),
                 out(a.m_out), out(a.v_out), out(a.publish_full), a.publish_half);
}

template <typename Real>
void Sgd(const host::SgdParams& params, const UpdateArrays& a) {
  const auto in = [](const void* array) { return static_cast<const Real*>(array); };
  const auto out = [](void* array) { return static_cast<Real*>(array); };
  host::SgdStep(params, a.count, in(a.gradient), in(a.p_in), in(a.m_in), out(a.p_out), out(a.m_out),
                out(a.publish_full), a.publish_half);
}

}  // namespace

void HostRankKernels::Copy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes > 0) memcpy(to, from, size_bytes);
}

void HostRankKernels::Clear(void* at, int64_t size_bytes) {
  if (size_bytes > 0) memset(at, 0, size_bytes);
}

void HostRankKernels::AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) {
  arrays.dtype == DType::kFp64 ? Adam<double>(params, arrays) : Adam<float>(params, arrays);
}

void HostRankKernels::SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) {
  arrays.dtype == DType::kFp64 ? Sgd<double>(params, arrays) : Sgd<float>(params, arrays);
}

void HostRankKernels::CastToHalf(ConstValues from, host::HalfOutput to) {
  const int64_t count = from.size();
  if (from.dtype() == DType::kFp64) {
    host::CastFp64ToHalf(to.dtype, static_cast<const double*>(from.data()), to.to, count);
  } else {
    host::CastFp32ToHalf(to.dtype, static_cast<const float*>(from.data()), to.to, count);
  }
}

void HostRankKernels::RoundToHalf(DType half, Values values) {
  const int64_t count = values.size();
  if (values.dtype() == DType::kFp64) {
    host::RoundToHalf(half, static_cast<double*>(values.data()), count);
  } else {
    host::RoundToHalf(half, static_cast<float*>(values.data()), count);
  }
}

void HostRankKernels::Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count,
                             double scale, bool accumulate, host::SumOutput output, bool measure) {
  host::GradientStats measured;
  host::ReduceSlices(inputs, input_dtype, count, scale, accumulate, output,
                     measure ? &measured : nullptr);
  Add(measured);
}

void HostRankKernels::Measure(ConstValues gradient) {
  const int64_t count = gradient.size();
  if (gradient.dtype() == DType::kFp64) {
    Add(host::MeasureGradient(static_cast<const double*>(gradient.data()), count));
  } else {
    Add(host::MeasureGradient(static_cast<const float*>(gradient.data()), count));
  }
}

void HostRankKernels::Add(const host::GradientStats& measured) {
  stats_.sum_of_squares += measured.sum_of_squares;
  stats_.non_finite = stats_.non_finite || measured.non_finite;
}

absl::Status HostRankKernels::TakeStats(host::GradientStats* stats) {
  // Taken, so that the next reduction's measure begins at zero.
  *stats = std::exchange(stats_, host::GradientStats());
  return absl::OkStatus();
}

void HostRankKernels::AddToNormPart(ConstValues gradient, double p) {
  const int64_t count = gradient.size();
  if (gradient.dtype() == DType::kFp64) {
    host::AddToNormPart(static_cast<const double*>(gradient.data()), count, p, &norm_part_);
  } else {
    host::AddToNormPart(static_cast<const float*>(gradient.data()), count, p, &norm_part_);
  }
}

absl::StatusOr<double> HostRankKernels::TakeNormPart() { return std::exchange(norm_part_, 0.0); }

absl::StatusOr<Buffer> HostRankKernels::AllocateOnHost(int64_t size_bytes) {
  char* memory = new (std::nothrow) char[size_bytes];
  if (memory == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat(size_bytes, " bytes of the host's memory"));
  return Buffer(memory, size_bytes, [memory] { delete[] memory; });
}

}  // namespace tessera
