#include "checkpoint/storage/s3/s3_file.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/storage/s3/parallel_calls.h"

namespace tessera::s3 {
namespace {

constexpr int64_t kFirstAheadBytes = 256 << 10;

// A range on its way.
struct Chunk {
  explicit Chunk(int64_t size_bytes)
      : size_bytes(size_bytes), bytes(new char[static_cast<size_t>(size_bytes)]) {}
  const int64_t size_bytes;
  const std::unique_ptr<char[]> bytes;
  absl::Status status;  // Once it is there.
  absl::Notification is_there;
};

}  // namespace

absl::Status S3File::CheckWithin(int64_t at_bytes, int64_t size_bytes) const {
  if (at_bytes >= 0 && size_bytes >= 0 && at_bytes <= info_.size_bytes &&
      size_bytes <= info_.size_bytes - at_bytes) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(shown_, ": bytes [", at_bytes, ", +", size_bytes,
                                          ") are not in it: it has ", info_.size_bytes));
}

absl::Status S3File::Read(int64_t at_bytes, int64_t size_bytes, void* into) const {
  RETURN_IF_ERROR(CheckWithin(at_bytes, size_bytes));
  if (size_bytes == 0) return absl::OkStatus();
  char* const data = static_cast<char*>(into);
  if (size_bytes > kReadBytes) return ReadLarge(at_bytes, size_bytes, data);
  ASSIGN_OR_RETURN(const std::shared_ptr<const Window> window, WindowWith(at_bytes, size_bytes));
  if (window == nullptr)
    return client_->GetRange(object_, info_.etag, at_bytes, absl::MakeSpan(data, size_bytes));
  memcpy(data, window->bytes.data() + (at_bytes - window->at_bytes), size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const S3File::Window>> S3File::WindowWith(int64_t at_bytes,
                                                                         int64_t size_bytes) const {
  int64_t ahead_bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    const bool follows = at_bytes == next_at_bytes_;
    next_at_bytes_ = at_bytes + size_bytes;
    if (window_ != nullptr && at_bytes >= window_->at_bytes &&
        next_at_bytes_ <= window_->at_bytes + static_cast<int64_t>(window_->bytes.size())) {
      return window_;
    }
    // A read that jumps gets what it asks for: what lies behind it may never be asked for.
    if (!follows) return std::shared_ptr<const Window>();
    // More with each: headers are small, and copies of whole files are not.
    ahead_bytes_ = std::clamp(4 * ahead_bytes_, kFirstAheadBytes, kReadBytes);
    ahead_bytes = std::max(ahead_bytes_, size_bytes);
  }
  // Not under the lock: others may read elsewhere meanwhile.
  auto window = std::make_shared<Window>();
  window->at_bytes = at_bytes;
  window->bytes.resize(std::min(ahead_bytes, info_.size_bytes - at_bytes));
  RETURN_IF_ERROR(client_->GetRange(object_, info_.etag, at_bytes,
                                    absl::MakeSpan(window->bytes.data(), window->bytes.size())));
  absl::MutexLock lock(&mu_);
  window_ = window;
  return window_;
}

absl::Status S3File::ReadLarge(int64_t at_bytes, int64_t size_bytes, char* into) const {
  ParallelCalls calls(kReadsAtOnce);
  for (int64_t at = 0; at < size_bytes; at += kReadBytes) {
    const absl::Span<char> range = absl::MakeSpan(into + at, std::min(kReadBytes, size_bytes - at));
    RETURN_IF_ERROR(calls.Add([this, at_bytes, at, range] {
      return client_->GetRange(object_, info_.etag, at_bytes + at, range);
    }));
  }
  return calls.Await();
}

absl::Status S3File::ReadInPieces(int64_t at_bytes, int64_t size_bytes, PieceRoom* room,
                                  TakePiece take) const {
  constexpr int64_t kPieceBytes = sizeof(room->bytes);
  RETURN_IF_ERROR(CheckWithin(at_bytes, size_bytes));
  std::deque<std::shared_ptr<Chunk>> ahead;
  ParallelCalls calls(kReadsAtOnce);
  for (int64_t asked = 0; asked < size_bytes || !ahead.empty();) {
    while (asked < size_bytes && ahead.size() < kReadsAtOnce) {
      auto chunk = std::make_shared<Chunk>(std::min(kReadBytes, size_bytes - asked));
      RETURN_IF_ERROR(calls.Add([this, chunk, at = at_bytes + asked] {
        chunk->status = client_->GetRange(object_, info_.etag, at,
                                          absl::MakeSpan(chunk->bytes.get(), chunk->size_bytes));
        chunk->is_there.Notify();
        return absl::OkStatus();  // Told in its turn: what comes before it stands.
      }));
      asked += chunk->size_bytes;
      ahead.push_back(std::move(chunk));
    }
    const std::shared_ptr<Chunk> chunk = std::move(ahead.front());
    ahead.pop_front();
    chunk->is_there.WaitForNotification();  // Its request has a deadline.
    RETURN_IF_ERROR(chunk->status);
    for (int64_t at = 0; at < chunk->size_bytes; at += kPieceBytes)
      take(absl::MakeConstSpan(chunk->bytes.get() + at,
                               std::min(kPieceBytes, chunk->size_bytes - at)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::s3
