#include "worker/device/host/streaming_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/device/host/streaming_copy.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Stream(uint8_t* to, const uint8_t* from, size_t size_bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t n = hn::Lanes(d);
  const size_t past = reinterpret_cast<uintptr_t>(to) % n;
  const size_t head = std::min(size_bytes, past == 0 ? 0 : n - past);
  if (head > 0) memcpy(to, from, head);
  size_t at = head;
  for (; at + n <= size_bytes; at += n) hn::Stream(hn::LoadU(d, from + at), d, to + at);
  if (at < size_bytes) memcpy(to + at, from + at, size_bytes - at);
  hwy::FlushStream();  // Such stores keep no order with others by themselves.
}

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace host {

HWY_EXPORT(Stream);

void StreamingCopy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes <= 0) return;
  HWY_DYNAMIC_DISPATCH(Stream)
  (static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), static_cast<size_t>(size_bytes));
}

}  // namespace host
}  // namespace tessera
#endif  // HWY_ONCE
