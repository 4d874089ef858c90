// What the GPU's kernels do to one element, for the GPU and for the CPU that tests it.
//
// The same operations in the same order as host/kernels.h, each rounded: nvcc compiles this with
// --fmad=false and the CPU's compiler with -ffp-contract=off, and both divide and take square roots
// exactly rounded. So results have the bits of the host's kernels, but for the payload of a NaN.
// How sums are added up is in measured_sum.h.
// Includes nothing but what nvcc has. Pure; thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNEL_MATH_H_
#define TESSERA_WORKER_DEVICE_CUDA_KERNEL_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "worker/device/measured_sum.h"

namespace tessera {
namespace gpu {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
// float8_e4m3fn and float8_e5m2 of PyTorch; no dtype of a job. What is too large for them, infinity
// too, becomes the largest number (448 and 57344) as by CUDA's __NV_SATFINITE, where PyTorch's own
// cast makes it NaN or infinite.
struct Fp8E4M3 {
  uint8_t bits;
};
struct Fp8E5M2 {
  uint8_t bits;
};

TESSERA_HOST_DEVICE uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TESSERA_HOST_DEVICE float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

TESSERA_HOST_DEVICE float Widen(float value) { return value; }
TESSERA_HOST_DEVICE double Widen(double value) { return value; }
TESSERA_HOST_DEVICE float Widen(Bf16 value) { return FloatOf(uint32_t{value.bits} << 16); }

TESSERA_HOST_DEVICE float Widen(Fp16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t fraction = value.bits & 0x3FFu;
  if (exponent == 0x1F) return FloatOf(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return FloatOf(sign | (exponent + 112) << 23 | fraction << 13);
  // A multiple of 2^-24, exact.
  return FloatOf(sign | BitsOf(static_cast<float>(fraction) * FloatOf((127u - 24u) << 23)));
}

// The upper half of an fp16.
TESSERA_HOST_DEVICE float Widen(Fp8E5M2 value) {
  return Widen(Fp16{static_cast<uint16_t>(value.bits << 8)});
}

TESSERA_HOST_DEVICE float Widen(Fp8E4M3 value) {
  const uint32_t sign = (value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7Fu;
  if (magnitude == 0x7F) return FloatOf(sign | 0x7FC00000u);
  if (magnitude >= 8) return FloatOf(sign | (magnitude + (120u << 3)) << 20);
  // A multiple of 2^-9, exact.
  return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * FloatOf((127u - 9u) << 23)));
}

TESSERA_HOST_DEVICE void Narrow(float value, float* to) { *to = value; }
TESSERA_HOST_DEVICE void Narrow(double value, float* to) { *to = static_cast<float>(value); }
TESSERA_HOST_DEVICE void Narrow(double value, double* to) { *to = value; }

// To nearest, ties to even. NaN stays NaN.
TESSERA_HOST_DEVICE void Narrow(float value, Bf16* to) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    to->bits = static_cast<uint16_t>(bits >> 16 | 0x40u);
  } else {
    to->bits = static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
}

TESSERA_HOST_DEVICE void Narrow(float value, Fp16* to) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t result;
  if (magnitude > 0x7F800000u) {
    result = 0x7E00u | (magnitude >> 13 & 0x3FFu);
  } else if (magnitude >= 143u << 23) {
    result = 0x7C00u;
  } else if (magnitude < 113u << 23) {
    // Below 2^-14 the unit of the last place is that of 0.5: the sum is rounded as it should be.
    const float half = FloatOf(126u << 23);
    result = BitsOf(FloatOf(magnitude) + half) - BitsOf(half);
  } else {
    const uint32_t odd = magnitude >> 13 & 1u;
    result = (magnitude + odd + 0xFFFu - (112u << 23)) >> 13;
  }
  to->bits = static_cast<uint16_t>(result | (bits >> 16 & 0x8000u));
}

// Into a format of eight bits whose fraction has `kFractionBits`, whose exponents begin at
// `kLeast` and whose largest number is `kLargest`: to nearest, ties to even.
template <int kFractionBits, int kLeast, uint32_t kLargest>
TESSERA_HOST_DEVICE uint8_t NarrowToEightBits(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  uint32_t result;
  if (magnitude < static_cast<uint32_t>(127 + kLeast) << 23) {
    // Of this number the unit of the last place is that of the format's smallest ones.
    const float base = FloatOf(static_cast<uint32_t>(127 + 23 + kLeast - kFractionBits) << 23);
    result = BitsOf(FloatOf(magnitude) + base) - BitsOf(base);
  } else {
    constexpr int kDropped = 23 - kFractionBits;
    const uint32_t odd = magnitude >> kDropped & 1u;
    const uint32_t half = (1u << (kDropped - 1)) - 1u;
    result = (magnitude + odd + half - (static_cast<uint32_t>(126 + kLeast) << 23)) >> kDropped;
  }
  return static_cast<uint8_t>(sign | (result < kLargest ? result : kLargest));
}

TESSERA_HOST_DEVICE void Narrow(float value, Fp8E4M3* to) {
  to->bits = NarrowToEightBits<3, -6, 0x7Eu>(value);
}
TESSERA_HOST_DEVICE void Narrow(float value, Fp8E5M2* to) {
  to->bits = NarrowToEightBits<2, -14, 0x7Bu>(value);
}

TESSERA_HOST_DEVICE void Narrow(double value, Bf16* to) { Narrow(static_cast<float>(value), to); }
TESSERA_HOST_DEVICE void Narrow(double value, Fp16* to) { Narrow(static_cast<float>(value), to); }
TESSERA_HOST_DEVICE void Narrow(double value, Fp8E4M3* to) {
  Narrow(static_cast<float>(value), to);
}
TESSERA_HOST_DEVICE void Narrow(double value, Fp8E5M2* to) {
  Narrow(static_cast<float>(value), to);
}

// There and back; a double by way of fp32.
template <typename Half, typename Real>
TESSERA_HOST_DEVICE Real RoundedTo(Real value) {
  Half half;
  Narrow(value, &half);
  return static_cast<Real>(Widen(half));
}

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

// 0: sum, 1: maximum, 2: minimum. A NaN stays.
template <typename Real>
TESSERA_HOST_DEVICE Real CombineElements(int op, Real a, Real b) {
  if (op == 0) return a + b;
  if (a != a) return a;
  if (op == 1) return b > a || b != b ? b : a;
  return b < a || b != b ? b : a;
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
