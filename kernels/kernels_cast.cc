// CastFp32ToHalf, CastHalfToFp32, RoundToHalf, SimdTargetName.
#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kernels_cast.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void NarrowAs(const float* src, T* dst, size_t count) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) StoreHalf(d, hn::LoadU(d, src + i), dst + i);
  // The tail runs the same code on one lane, so that its elements round as all others do.
  for (; i < count; ++i) StoreHalf(one, hn::LoadU(one, src + i), dst + i);
}

template <typename T>
HWY_INLINE void WidenAs(const T* src, float* dst, size_t count) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) hn::StoreU(LoadFloat(d, src + i), d, dst + i);
  for (; i < count; ++i) hn::StoreU(LoadFloat(one, src + i), one, dst + i);
}

void Narrow(const float* src, uint16_t* dst, size_t count, bool is_fp16) {
  if (is_fp16) return NarrowAs(src, reinterpret_cast<Fp16*>(dst), count);
  NarrowAs(src, dst, count);
}

void Widen(const uint16_t* src, float* dst, size_t count, bool is_fp16) {
  if (is_fp16) return WidenAs(reinterpret_cast<const Fp16*>(src), dst, count);
  WidenAs(src, dst, count);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace host {

HWY_EXPORT(Narrow);
HWY_EXPORT(Widen);
HWY_EXPORT(TargetName);

void CastFp32ToHalf(DType dtype, const float* src, uint16_t* dst, int64_t count) {
  TESSERA_CHECK(count >= 0);
  TESSERA_CHECK(IsHalf(dtype));
  HWY_DYNAMIC_DISPATCH(Narrow)(src, dst, static_cast<size_t>(count), dtype == DType::kFp16);
}

void CastHalfToFp32(DType dtype, const uint16_t* src, float* dst, int64_t count) {
  TESSERA_CHECK(count >= 0);
  TESSERA_CHECK(IsHalf(dtype));
  HWY_DYNAMIC_DISPATCH(Widen)(src, dst, static_cast<size_t>(count), dtype == DType::kFp16);
}

// By way of a small piece on the stack, which stays in the first-level cache.
void RoundToHalf(DType dtype, float* values, int64_t count) {
  constexpr int64_t kPieceElements = 1024;
  uint16_t piece[kPieceElements];
  for (int64_t at = 0; at < count; at += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - at);
    CastFp32ToHalf(dtype, values + at, piece, size);
    CastHalfToFp32(dtype, piece, values + at, size);
  }
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace host
}  // namespace tessera
#endif  // HWY_ONCE
