// The passes over memory that a host rank makes: reduce, measure, optimize, cast.
//
//   ReduceSlices   out[i] (+)= scale * (in[0][i] + in[1][i] + ... + in[N-1][i])
//   AdamStep       (g, p, m, v) -> (p', m', v') and a published copy of p', in one pass
//   SgdStep        (g, p, b) -> (p', b') and a published copy of p', in one pass
//
// Counts are ELEMENTS, pointers need only their element's alignment (128 bytes is fastest).
// Every result but the payload of a NaN is bit-identical whatever the SIMD width, the alignment or
// the CPU: sums run in rank order, no product is fused into a sum, and each element is
// computed on its own.
// The widest instructions of the running CPU are picked at the first call.
// The overloads on double are for shards of fp64: the same formulas, rounded in double; what is
// said of fp32 below holds for fp64 there.
// Pure functions; thread-safe over disjoint outputs.
#ifndef TESSERA_KERNELS_KERNELS_H_
#define TESSERA_KERNELS_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "layout/dtype.h"

namespace tessera {
namespace host {

// What the finite check and the gradient norm need of a slice. Slices add up: sums add, flags or.
struct GradientStats {
  // In double, in the order of measured_sum.h, so that the bits do not depend on the width of
  // vectors and are those of a GPU.
  double sum_of_squares = 0;
  bool non_finite = false;  // Some element is infinite or not a number.
};

// Where sums go, fp32 or fp64. A view.
struct SumOutput {
  SumOutput(float* to) : data(to), dtype(DType::kFp32) {}   // NOLINT(google-explicit-constructor)
  SumOutput(double* to) : data(to), dtype(DType::kFp64) {}  // NOLINT(google-explicit-constructor)
  // `of`: kFp32 or kFp64.
  SumOutput(void* to, DType of) : data(to), dtype(of) {}
  SumOutput At(int64_t elements) const {
    return {static_cast<char*>(data) + elements * SizeBytes(dtype), dtype};
  }

  void* data;
  DType dtype;
};

// Sums the inputs element by element in rank order in the output's dtype, multiplies by `scale`,
// writes the result to `output`, or adds it to `output` if `accumulate`. Reads each input once.
// `stats`, if not null, is set to the measure of what was written.
// Requires at least one input, and `input_dtype` kFp32, kBf16, kFp16 or, into fp64, kFp64. `output`
// may be one of the inputs (of its dtype only), but not overlap it otherwise.
void ReduceSlices(absl::Span<const void* const> inputs_by_rank, DType input_dtype, int64_t count,
                  double scale, bool accumulate, SumOutput output, GradientStats* stats);
void ReduceSlicesToFp64(absl::Span<const void* const> inputs_by_rank, DType input_dtype,
                        int64_t count, double scale, bool accumulate, double* output,
                        GradientStats* stats);

GradientStats MeasureGradient(const float* gradient, int64_t count);
GradientStats MeasureGradient(const double* gradient, int64_t count);

// dst[i] += src[i].
void Accumulate(float* dst, const float* src, int64_t count);
void Accumulate(double* dst, const double* src, int64_t count);

// Adam and AdamW of PyTorch, for one step t >= 1. All rounding is fp32:
//
//   g  = gradient_scale * gradient
//   g += weight_decay * p                          if not decoupled_weight_decay (Adam)
//   p *= 1 - learning_rate * weight_decay          if decoupled_weight_decay (AdamW)
//   m' = beta1 * m + (1 - beta1) * g
//   v' = beta2 * v + (1 - beta2) * g * g
//   p' = p - (learning_rate / bias_correction1) * m' / (sqrt(v' / bias_correction2) + epsilon)
//
// with bias_correction1 = 1 - beta1^t and bias_correction2 = 1 - beta2^t. Held in double, since
// 1 - beta2 loses four digits in float.
struct AdamParams {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double bias_correction1 = 1;
  double bias_correction2 = 1;
  double gradient_scale = 1;  // Unscaling and clipping.
  bool decoupled_weight_decay = false;
};

// Where a rounded copy goes: kBf16 or kFp16. Nowhere if `to` is null.
struct HalfOutput {
  uint16_t* to = nullptr;
  DType dtype = DType::kBf16;
};

// Each output may equal its input (then the step is in place) but not overlap it otherwise.
// p_out is also written to `publish_fp32`, where not null, and, rounded, to `publish_half`.
void AdamStep(const AdamParams& params, int64_t count, const float* gradient, const float* p_in,
              const float* m_in, const float* v_in, float* p_out, float* m_out, float* v_out,
              float* publish_fp32, HalfOutput publish_half);
void AdamStep(const AdamParams& params, int64_t count, const double* gradient, const double* p_in,
              const double* m_in, const double* v_in, double* p_out, double* m_out, double* v_out,
              double* publish_fp64, HalfOutput publish_half);

// SGD of PyTorch (no dampening, no Nesterov):
//
//   g  = gradient_scale * gradient + weight_decay * p
//   b' = g on the first step, else momentum * b + g
//   p' = p - learning_rate * b'
struct SgdParams {
  double learning_rate = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  double gradient_scale = 1;
  bool first_step = false;
};

// As AdamStep. With momentum 0 the momentum buffers are not touched and may be null; on the first
// step momentum_in is not read.
void SgdStep(const SgdParams& params, int64_t count, const float* gradient, const float* p_in,
             const float* momentum_in, float* p_out, float* momentum_out, float* publish_fp32,
             HalfOutput publish_half);
void SgdStep(const SgdParams& params, int64_t count, const double* gradient, const double* p_in,
             const double* momentum_in, double* p_out, double* momentum_out, double* publish_fp64,
             HalfOutput publish_half);

// `dtype`: kBf16 or kFp16. Rounds to nearest, ties to even. Too large becomes infinite; NaN stays
// NaN, with its sign and upper payload.
void CastFp32ToHalf(DType dtype, const float* src, uint16_t* dst, int64_t count);
void CastHalfToFp32(DType dtype, const uint16_t* src, float* dst, int64_t count);  // Exact.
void RoundToHalf(DType dtype, float* values, int64_t count);  // There and back.
// By way of fp32, as libtorch rounds.
void CastFp64ToHalf(DType dtype, const double* src, uint16_t* dst, int64_t count);
void RoundToHalf(DType dtype, double* values, int64_t count);

// The instruction set in use, such as "AVX3"; for logs and benchmarks.
const char* SimdTargetName();

}  // namespace host
}  // namespace tessera

#endif  // TESSERA_KERNELS_KERNELS_H_
