// What the GPU's kernels do to one element, for the GPU and for the CPU that tests it.
//
// The same operations in the same order as kernels/kernels.h, each rounded: nvcc compiles this with
// --fmad=false and the CPU's compiler with -ffp-contract=off, and both divide and take square roots
// exactly rounded. So results have the bits of the host's kernels, but for the payload of a NaN.
// How sums are added up is in measured_sum.h, how narrow types are rounded in narrow_floats.h.
// Includes nothing but what nvcc has. Pure; thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNEL_MATH_H_
#define TESSERA_WORKER_DEVICE_CUDA_KERNEL_MATH_H_

#include <cmath>
#include <cstdint>

#include "kernels/measured_sum.h"
#include "kernels/narrow_floats.h"

namespace tessera {
namespace gpu {

using narrow::Bf16;
using narrow::BitsOf;
using narrow::FloatOf;
using narrow::Fp16;
using narrow::Fp8E4M3;
using narrow::Fp8E5M2;
using narrow::Narrow;
using narrow::RoundedTo;
using narrow::Select;
using narrow::Widen;
using narrow::WideOf;

TESSERA_HOST_DEVICE float SquareRoot(float value) { return sqrtf(value); }
TESSERA_HOST_DEVICE double SquareRoot(double value) { return sqrt(value); }

// What a product by `scale` is computed in: fp64 between fp64s, else fp32.
template <typename From, typename To>
TESSERA_HOST_DEVICE void CastElement(From from, double scale, To* to) {
  Narrow(static_cast<float>(Widen(from)) * static_cast<float>(scale), to);
}
template <typename From>
TESSERA_HOST_DEVICE void CastElement(From from, double scale, double* to) {
  *to = static_cast<double>(Widen(from)) * scale;
}

// See host::AdamStep and host::SgdStep. Each factor is rounded to Real once.
template <typename Real>
struct AdamFactors {
  Real gradient_scale;
  Real l2_decay;
  Real decay;
  Real beta1;
  Real one_minus_beta1;
  Real beta2;
  Real one_minus_beta2;
  Real inverse_sqrt_correction2;
  Real epsilon;
  Real step_size;
};

template <typename Real>
TESSERA_HOST_DEVICE void AdamElement(const AdamFactors<Real>& f, Real gradient, Real* p, Real* m,
                                     Real* v) {
  Real g = gradient * f.gradient_scale;
  if (f.l2_decay != 0) g = g + *p * f.l2_decay;
  if (f.decay != 1) *p = *p * f.decay;
  *m = *m * f.beta1 + g * f.one_minus_beta1;
  *v = *v * f.beta2 + g * f.one_minus_beta2 * g;
  const Real denominator = SquareRoot(*v) * f.inverse_sqrt_correction2 + f.epsilon;
  *p = *p - f.step_size * (*m / denominator);
}

template <typename Real>
struct SgdFactors {
  Real gradient_scale;
  Real weight_decay;
  Real momentum;
  Real learning_rate;
  bool read_momentum;
  bool write_momentum;
};

// Returns the new momentum, which is the direction of the step too.
template <typename Real>
TESSERA_HOST_DEVICE Real SgdElement(const SgdFactors<Real>& f, Real gradient, Real momentum,
                                    Real* p) {
  Real g = gradient * f.gradient_scale;
  if (f.weight_decay != 0) g = g + *p * f.weight_decay;
  if (f.read_momentum) g = momentum * f.momentum + g;
  *p = *p - g * f.learning_rate;
  return g;
}

// A checksum that depends on every bit and its place, and not on the order of adding up: the sum
// over all elements, modulo 2^64. `bits` is the element as an unsigned integer.
TESSERA_HOST_DEVICE uint64_t ChecksumElement(uint64_t index, uint64_t bits) {
  uint64_t mixed = (bits + 1) * 0x9E3779B97F4A7C15u ^ (index + 1) * 0xC2B2AE3D27D4EB4Fu;
  mixed ^= mixed >> 32;
  mixed *= 0xD6E8FEB86659FD93u;
  mixed ^= mixed >> 32;
  return mixed * 0xD6E8FEB86659FD93u;
}

// Doubles in which `count` elements are measured: a sum for each block and each group.
constexpr int64_t MeasureRoom(int64_t count) {
  return MeasureBlocksOf(count) + MeasureGroupsOf(MeasureBlocksOf(count));
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNEL_MATH_H_
