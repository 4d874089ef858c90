// What the other kernels do, for shards of fp64: one element after the other, in double.
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "kernels/kernels.h"
#include "kernels/measured_sum.h"

namespace tessera {
namespace host {
namespace {

constexpr int64_t kPieceElements = 512;  // Fits into the first-level cache in every dtype.

// out[i] (+)= scale * (sum of `inputs`), which begin at element `begin`.
void ReducePiece(absl::Span<const void* const> inputs, DType dtype, int64_t begin, int64_t count,
                 double scale, bool accumulate, double* output) {
  double sum[kPieceElements];
  float widened[kPieceElements];
  for (size_t r = 0; r < inputs.size(); ++r) {
    // One of the two does not point at what it says. It is not read then.
    const double* as_fp64 = static_cast<const double*>(inputs[r]) + begin;
    const float* as_fp32 = static_cast<const float*>(inputs[r]) + begin;
    if (IsHalf(dtype)) {
      CastHalfToFp32(dtype, static_cast<const uint16_t*>(inputs[r]) + begin, widened, count);
      as_fp32 = widened;
    }
    for (int64_t i = 0; i < count; ++i) {
      const double value = dtype == DType::kFp64 ? as_fp64[i] : static_cast<double>(as_fp32[i]);
      sum[i] = r == 0 ? value : sum[i] + value;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    // Scaled before it is added to what is there, as in the fp32 kernel.
    const double scaled = sum[i] * scale;
    output[i] = accumulate ? output[i] + scaled : scaled;
  }
}

void PublishFp64(const double* p, int64_t count, double* fp64, const HalfOutput& half) {
  if (fp64 != nullptr && fp64 != p) {
    for (int64_t i = 0; i < count; ++i) fp64[i] = p[i];
  }
  if (half.to != nullptr) CastFp64ToHalf(half.dtype, p, half.to, count);
}

}  // namespace

void ReduceSlicesToFp64(absl::Span<const void* const> inputs_by_rank, DType input_dtype,
                        int64_t count, double scale, bool accumulate, double* output,
                        GradientStats* stats) {
  TESSERA_CHECK(!inputs_by_rank.empty() && count >= 0);
  TESSERA_CHECK(IsFloatingPoint(input_dtype));
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = count - begin < kPieceElements ? count - begin : kPieceElements;
    ReducePiece(inputs_by_rank, input_dtype, begin, size, scale, accumulate, output + begin);
  }
  // In a pass of its own: the blocks of the sum are larger than this loop's pieces.
  if (stats != nullptr) *stats = MeasureGradient(output, count);
}

GradientStats MeasureGradient(const double* gradient, int64_t count) {
  TESSERA_CHECK(count >= 0);
  GradientStats stats;
  stats.sum_of_squares = MeasuredSum<Measured::kSquares>(gradient, count, 2);
  if (std::isfinite(stats.sum_of_squares)) return stats;
  // Squares of finite numbers may be infinite.
  for (int64_t i = 0; i < count; ++i) stats.non_finite |= !std::isfinite(gradient[i]);
  return stats;
}

void Accumulate(double* dst, const double* src, int64_t count) {
  TESSERA_CHECK(count >= 0);
  for (int64_t i = 0; i < count; ++i) dst[i] += src[i];
}

void CastFp64ToHalf(DType dtype, const double* src, uint16_t* dst, int64_t count) {
  // Rounded twice, to fp32 first, on every way from fp64 to a half: so all of them agree to the
  // bit.
  float piece[kPieceElements];
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = count - begin < kPieceElements ? count - begin : kPieceElements;
    for (int64_t i = 0; i < size; ++i) piece[i] = static_cast<float>(src[begin + i]);
    CastFp32ToHalf(dtype, piece, dst + begin, size);
  }
}

void RoundToHalf(DType dtype, double* values, int64_t count) {
  float piece[kPieceElements];
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = count - begin < kPieceElements ? count - begin : kPieceElements;
    for (int64_t i = 0; i < size; ++i) piece[i] = static_cast<float>(values[begin + i]);
    RoundToHalf(dtype, piece, size);
    for (int64_t i = 0; i < size; ++i) values[begin + i] = static_cast<double>(piece[i]);
  }
}

void AdamStep(const AdamParams& params, int64_t count, const double* gradient, const double* p_in,
              const double* m_in, const double* v_in, double* p_out, double* m_out, double* v_out,
              double* publish_fp64, HalfOutput publish_half) {
  TESSERA_CHECK(count >= 0);
  const bool decoupled = params.decoupled_weight_decay;
  const double decay = decoupled ? 1.0 - params.learning_rate * params.weight_decay : 1.0;
  const double l2_decay = decoupled ? 0.0 : params.weight_decay;
  const double inverse_sqrt_correction2 = 1.0 / std::sqrt(params.bias_correction2);
  // The same operations in the same order as in the fp32 kernel.
  const double step_size = params.learning_rate / params.bias_correction1;
  for (int64_t i = 0; i < count; ++i) {
    double p = p_in[i];
    double g = gradient[i] * params.gradient_scale;
    if (l2_decay != 0) g += p * l2_decay;
    if (decay != 1) p *= decay;
    const double m = m_in[i] * params.beta1 + g * (1.0 - params.beta1);
    const double v = v_in[i] * params.beta2 + g * (1.0 - params.beta2) * g;
    p -= step_size * (m / (std::sqrt(v) * inverse_sqrt_correction2 + params.epsilon));
    m_out[i] = m;
    v_out[i] = v;
    p_out[i] = p;
  }
  PublishFp64(p_out, count, publish_fp64, publish_half);
}

void SgdStep(const SgdParams& params, int64_t count, const double* gradient, const double* p_in,
             const double* momentum_in, double* p_out, double* momentum_out, double* publish_fp64,
             HalfOutput publish_half) {
  TESSERA_CHECK(count >= 0);
  const bool has_momentum = params.momentum != 0;
  for (int64_t i = 0; i < count; ++i) {
    const double p = p_in[i];
    double g = gradient[i] * params.gradient_scale;
    if (params.weight_decay != 0) g += p * params.weight_decay;
    if (has_momentum && !params.first_step) g = momentum_in[i] * params.momentum + g;
    if (has_momentum) momentum_out[i] = g;
    p_out[i] = p - g * params.learning_rate;
  }
  PublishFp64(p_out, count, publish_fp64, publish_half);
}

}  // namespace host
}  // namespace tessera
