#include "job/buffer_placement.h"

#include "absl/strings/str_cat.h"
#include "base/page_bytes.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxBankBytes = int64_t{1} << 40;

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

absl::StatusOr<BufferPlacement> BufferPlacement::Of(const std::vector<BufferSpec>& buffers) {
  BufferPlacement placement;
  if (buffers.empty()) return placement;
  // The sequence words come first, then each buffer on lines of its own.
  int64_t end = RoundUp(buffers.size() * sizeof(uint64_t), kAlignment);
  for (const BufferSpec& buffer : buffers) {
    ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(buffer));
    // Written as a difference, so that no sum can overflow.
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

}  // namespace tessera
