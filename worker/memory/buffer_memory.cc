#include "worker/memory/buffer_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/memory/region.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxBankBytes = int64_t{1} << 40;

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

absl::StatusOr<BufferPlacement> BufferPlacement::Of(const std::vector<BufferSpec>& buffers) {
  BufferPlacement placement;
  if (buffers.empty()) return placement;
  int64_t end = RoundUp(buffers.size() * sizeof(std::atomic<uint64_t>), kAlignment);
  for (const BufferSpec& buffer : buffers) {
    ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(buffer));
    if (size_bytes > kMaxBankBytes - end) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer '", buffer.name, "': the buffers are too large"));
    }
    placement.places_.push_back({end, size_bytes});
    end = RoundUp(end + size_bytes, kAlignment);
  }
  placement.bank_bytes_ = RoundUp(end, kPageBytes);
  return placement;
}

void BufferBank::WriteMarked(int buffer, const void* values, uint64_t mark) const {
  std::atomic<uint64_t>& word = sequence(buffer);
  // Of whatever stands there the count, which no number of writes brings to its end.
  const uint64_t count = word.load(std::memory_order_relaxed) & (kGivenWord - 1);
  const uint64_t writing = count < kGivenWord - 2 ? count | 1 : 1;
  word.store(writing, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const int64_t half = size_bytes(buffer) / 2;
  if (half > 0) memcpy(this->values(buffer), values, half);
  (void)FaultPoint("buffers.write");
  const auto* rest = static_cast<const std::byte*>(values) + half;
  if (size_bytes(buffer) > 0) memcpy(this->values(buffer) + half, rest, size_bytes(buffer) - half);
  word.store((writing + 1) | mark, std::memory_order_release);
}

}  // namespace tessera
