#include "base/streaming_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/streaming_copy.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Stream(uint8_t* to, const uint8_t* from, size_t size_bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t n = hn::Lanes(d);
  // Streaming stores need aligned addresses.
  const size_t past = reinterpret_cast<uintptr_t>(to) % n;
  const size_t head = std::min(size_bytes, past == 0 ? 0 : n - past);
  if (head > 0) memcpy(to, from, head);
  size_t at = head;
  for (; at + n <= size_bytes; at += n) hn::Stream(hn::LoadU(d, from + at), d, to + at);
  if (at < size_bytes) memcpy(to + at, from + at, size_bytes - at);
}

void Ahead(uint8_t* to, const uint8_t* from, size_t size_bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t n = hn::Lanes(d);
  constexpr size_t kLineBytes = 64, kAheadBytes = 4096;
  size_t at = 0;
  for (; at + kLineBytes <= size_bytes; at += kLineBytes) {
    // A prefetch hint, not an access: beyond the end it has no effect.
    hwy::Prefetch(
        reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(from) + at + kAheadBytes));
    for (size_t i = 0; i < kLineBytes; i += n)
      hn::StoreU(hn::LoadU(d, from + at + i), d, to + at + i);
  }
  if (at < size_bytes) memcpy(to + at, from + at, size_bytes - at);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

HWY_EXPORT(Stream);
HWY_EXPORT(Ahead);

void CopyAhead(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes <= 0) return;
  HWY_DYNAMIC_DISPATCH(Ahead)
  (static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), static_cast<size_t>(size_bytes));
}

void StreamingCopy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes <= 0) return;
  HWY_DYNAMIC_DISPATCH(Stream)
  (static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), static_cast<size_t>(size_bytes));
}

void FlushStreamed() { hwy::FlushStream(); }

}  // namespace tessera
#endif  // HWY_ONCE
