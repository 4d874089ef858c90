// Floating-point types that are kept in fewer bits than they are computed in: to and from fp32, for
// the CPU and, to the same bits, for the GPU.
//
//   Widen   exact                  Narrow   of fp32 to nearest, ties to even, once
//
// Includes nothing but what nvcc has. Pure; thread-safe.
#ifndef TESSERA_KERNELS_NARROW_FLOATS_H_
#define TESSERA_KERNELS_NARROW_FLOATS_H_

#include <cstdint>
#include <cstring>

#include "kernels/measured_sum.h"  // For TESSERA_HOST_DEVICE.

namespace tessera {
namespace narrow {

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

// Into an FP8 format whose fraction has `kFractionBits`, whose exponents begin at
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

// What sums of T are in: float, and of double double.
template <typename T>
using WideOf = decltype(Widen(T()));

// The larger one, or the smaller one: of two that are equal, such as zeros of both signs, `a`. One
// that is not a number, if there is one.
template <typename T>
TESSERA_HOST_DEVICE T Select(bool larger, T a, T b) {
  const WideOf<T> wide_a = Widen(a), wide_b = Widen(b);
  if (wide_a != wide_a) return a;
  const bool takes_b = larger ? wide_b > wide_a : wide_b < wide_a;
  return takes_b || wide_b != wide_b ? b : a;
}

}  // namespace narrow
}  // namespace tessera

#endif  // TESSERA_KERNELS_NARROW_FLOATS_H_
