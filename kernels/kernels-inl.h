// Vector pieces that the kernels share; compiled once for each instruction set.
#if defined(TESSERA_KERNELS_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_KERNELS_INL_H_
#undef TESSERA_KERNELS_KERNELS_INL_H_
#else
#define TESSERA_KERNELS_KERNELS_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of full width, and of one element for the tail: the same code runs over both, so the
// tail rounds as the body does.
using FullTag = hn::ScalableTag<float>;
using OneTag = hn::CappedTag<float, 1>;

// Asks for what a stream needs a little later. The CPU's own prefetchers stop at the end of a
// page and lose track of many streams; this is worth 5 to 20 percent. Past the end of a stream it
// does no harm: a prefetch never faults.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* stream) {
  constexpr uintptr_t kAheadBytes = 2048;
  hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<uintptr_t>(stream) + kAheadBytes));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloat(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloat(D d, const uint16_t* from_bf16) {
  const hn::RebindToUnsigned<D> du32;
  const hn::Rebind<uint16_t, D> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from_bf16))));
}

// An element of fp16, where a kernel chooses by type; bf16 is uint16_t.
enum class Fp16 : uint16_t {};

// In integers and one exact subtraction, so that every instruction set gives the same bits.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloat(D d, const Fp16* from_fp16) {
  const hn::RebindToUnsigned<D> du32;
  const hn::Rebind<uint16_t, D> du16;
  const auto half =
      hn::PromoteTo(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from_fp16)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(du32, 0x7FFFu)));
  const auto exponent = hn::And(shifted, hn::Set(du32, 0x0F800000u));
  const auto normal = hn::Add(shifted, hn::Set(du32, (127u - 15u) << 23));
  const auto huge = hn::Add(normal, hn::Set(du32, (128u - 16u) << 23));  // Infinite or NaN.
  const auto two_to_minus_14 = hn::Set(du32, 113u << 23);
  const auto tiny =
      hn::BitCast(du32, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(du32, 1u << 23))),
                                hn::BitCast(d, two_to_minus_14)));
  const auto is_huge = hn::Eq(exponent, hn::Set(du32, 0x0F800000u));
  const auto is_tiny = hn::Eq(exponent, hn::Zero(du32));
  const auto magnitude = hn::IfThenElse(is_huge, huge, hn::IfThenElse(is_tiny, tiny, normal));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du32, 0x8000u)));
  return hn::BitCast(d, hn::Or(magnitude, sign));
}

template <class D>
HWY_INLINE void StoreHalf(D d, hn::Vec<D> v, Fp16* to) {
  const hn::RebindToUnsigned<D> du32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du32, v);
  const auto magnitude = hn::And(bits, hn::Set(du32, 0x7FFFFFFFu));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du32, 1u));
  // The carry of rounding runs into the exponent, up to infinity.
  const auto rounding = hn::Add(odd, hn::Set(du32, 0xFFFu - ((127u - 15u) << 23)));
  const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, rounding));
  // Below 2^-14 the unit of the last place is that of 0.5: the sum is rounded as it should be.
  const auto half = hn::Set(du32, 126u << 23);
  const auto tiny =
      hn::Sub(hn::BitCast(du32, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
  const auto quiet_nan =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du32, 0x3FFu)), hn::Set(du32, 0x7E00u));
  const auto as_signed = hn::BitCast(di32, magnitude);
  const auto is_tiny = hn::RebindMask(du32, hn::Lt(as_signed, hn::Set(di32, 113 << 23)));
  const auto is_huge = hn::RebindMask(du32, hn::Gt(as_signed, hn::Set(di32, (143 << 23) - 1)));
  const auto is_nan = hn::RebindMask(du32, hn::IsNaN(v));
  auto result = hn::IfThenElse(is_tiny, tiny, normal);
  result = hn::IfThenElse(is_huge, hn::Set(du32, 0x7C00u), result);
  result = hn::IfThenElse(is_nan, quiet_nan, result);
  result = hn::Or(result, hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 0x8000u)));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, result)), du16, reinterpret_cast<uint16_t*>(to));
}

template <class D>
HWY_INLINE void StoreHalf(D /*d*/, hn::Vec<D> v, uint16_t* to_bf16) {
  const hn::RebindToUnsigned<D> du32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7FFFu))));
  const auto quiet_nan = hn::Or(upper, hn::Set(du32, 0x0040u));
  const auto is_nan = hn::RebindMask(du32, hn::IsNaN(v));
  const auto result = hn::IfThenElse(is_nan, quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, result)), du16, to_bf16);
}

// The sum of squares of at most one block: element i is summed in lane i mod 16, then the lanes in
// order. Sums of blocks are added in order, whichever thread computes them.
HWY_INLINE double SquaresOfBlock(const float* values, size_t count) {
  constexpr size_t kLanes = 16;
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  constexpr size_t kWidth = hn::MaxLanes(hn::CappedTag<double, 8>());
  constexpr size_t kVectors = kLanes / kWidth;
  hn::Vec<decltype(d64)> sums[kVectors];
  for (size_t k = 0; k < kVectors; ++k) sums[k] = hn::Zero(d64);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t k = 0; k < kVectors; ++k) {
      const auto v = hn::PromoteTo(d64, hn::LoadU(d32, values + i + k * kWidth));
      sums[k] = hn::Add(sums[k], hn::Mul(v, v));
    }
  }
  double lanes[kLanes];
  for (size_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d64, lanes + k * kWidth);
  for (size_t lane = 0; i < count; ++i, ++lane) {
    const double v = values[i];
    lanes[lane] += v * v;
  }
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_KERNELS_INL_H_
