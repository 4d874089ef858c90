#include "checkpoint/storage/storage.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera {

absl::Status ReadableFile::ReadInPieces(int64_t at_bytes, int64_t size_bytes, PieceRoom* room,
                                        TakePiece take) const {
  constexpr int64_t kMostBytes = sizeof(room->bytes);
  static_assert(kMostBytes % kPieceMultipleBytes == 0);
  for (int64_t at = 0; at < size_bytes; at += kMostBytes) {
    const int64_t bytes = std::min(kMostBytes, size_bytes - at);
    RETURN_IF_ERROR(Read(at_bytes + at, bytes, room->bytes));
    take(absl::MakeConstSpan(room->bytes, bytes));
  }
  return absl::OkStatus();
}

}  // namespace tessera
