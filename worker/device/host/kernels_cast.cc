// CastFp32ToBf16, CastBf16ToFp32, SimdTargetName.
#include <cstddef>

#include "base/check.h"
#include "worker/device/host/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/device/host/kernels_cast.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "worker/device/host/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {

void ToBf16(const float* src, uint16_t* dst, size_t count) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) StoreBf16(d, hn::LoadU(d, src + i), dst + i);
  for (; i < count; ++i) StoreBf16(one, hn::LoadU(one, src + i), dst + i);
}

void FromBf16(const uint16_t* src, float* dst, size_t count) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) hn::StoreU(LoadFloat(d, src + i), d, dst + i);
  for (; i < count; ++i) hn::StoreU(LoadFloat(one, src + i), one, dst + i);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace host {

HWY_EXPORT(ToBf16);
HWY_EXPORT(FromBf16);
HWY_EXPORT(TargetName);

void CastFp32ToBf16(const float* src, uint16_t* dst, int64_t count) {
  TESSERA_CHECK(count >= 0);
  HWY_DYNAMIC_DISPATCH(ToBf16)(src, dst, static_cast<size_t>(count));
}

void CastBf16ToFp32(const uint16_t* src, float* dst, int64_t count) {
  TESSERA_CHECK(count >= 0);
  HWY_DYNAMIC_DISPATCH(FromBf16)(src, dst, static_cast<size_t>(count));
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace host
}  // namespace tessera
#endif  // HWY_ONCE
