// Vector pieces that the kernels share; compiled once for each instruction set.
#if defined(TESSERA_WORKER_DEVICE_HOST_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_WORKER_DEVICE_HOST_KERNELS_INL_H_
#undef TESSERA_WORKER_DEVICE_HOST_KERNELS_INL_H_
#else
#define TESSERA_WORKER_DEVICE_HOST_KERNELS_INL_H_
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

// Asks for what a stream needs a little later. The processor's own prefetchers stop at the end of a
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

template <class D>
HWY_INLINE void StoreBf16(D /*d*/, hn::Vec<D> v, uint16_t* to) {
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
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, result)), du16, to);
}

// The sum of squares of at most one block: element i is summed in lane i mod 16, then the lanes in
// order. Sums of blocks are added in order, whoever computes them.
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

#endif  // TESSERA_WORKER_DEVICE_HOST_KERNELS_INL_H_
