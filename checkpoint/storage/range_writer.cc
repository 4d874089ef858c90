#include "checkpoint/storage/range_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/write_at.h"

namespace tessera {

absl::StatusOr<RangeWriter> RangeWriter::Open(std::string path, DirectWrites* direct) {
  // O_NONBLOCK: a pipe at that path would wait for a reader.
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  return RangeWriter(std::move(fd), std::move(path), direct);
}

absl::Status RangeWriter::Write(ByteSource* bytes, int64_t at_bytes, uint32_t* crc32,
                                const Wrote& wrote) {
  const int64_t end_bytes = at_bytes + bytes->size_bytes();
  ASSIGN_OR_RETURN(const Extent blocks, BlocksOf(at_bytes, end_bytes));
  // Too small for blocks of its own, or no direct writes: all of it through the cache.
  if (blocks.begin_bytes == blocks.end_bytes)
    return WriteCached(bytes, bytes->size_bytes(), at_bytes, crc32, wrote);
  // Ends that share a block with other ranges go through the cache, so that no other range's bytes
  // are written back with these.
  RETURN_IF_ERROR(WriteCached(bytes, blocks.begin_bytes - at_bytes, at_bytes, crc32, wrote));
  RETURN_IF_ERROR(direct_->Write(direct_file_, bytes, blocks.end_bytes - blocks.begin_bytes,
                                 blocks.begin_bytes, crc32, wrote));
  return WriteCached(bytes, end_bytes - blocks.end_bytes, blocks.end_bytes, crc32, wrote);
}

absl::StatusOr<RangeWriter::Extent> RangeWriter::BlocksOf(int64_t begin_bytes, int64_t end_bytes) {
  if (direct_ == nullptr || direct_->from_bytes() <= 0) return Extent();
  // Small writes are faster through the cache (docs/adr/0036).
  if (end_bytes - begin_bytes < direct_->from_bytes()) return Extent();
  if (direct_file_ == nullptr) {
    ASSIGN_OR_RETURN(direct_file_, DirectWrites::Open(path_));
    if (direct_file_ == nullptr) direct_ = nullptr;
  }
  if (direct_ == nullptr || direct_file_->refused.load()) return Extent();
  const int64_t block_bytes = direct_file_->block_bytes;
  const int64_t first = (begin_bytes + block_bytes - 1) / block_bytes * block_bytes;
  const int64_t last = end_bytes / block_bytes * block_bytes;
  // What is left of whole blocks may be too small again.
  return last - first < direct_->from_bytes() ? Extent() : Extent{first, last};
}

absl::Status RangeWriter::WriteCached(ByteSource* bytes, int64_t size_bytes, int64_t at_bytes,
                                      uint32_t* crc32, const Wrote& wrote) {
  // Checksums are computed while the written bytes are in the CPU cache.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  if (room_ == nullptr) room_.reset(new char[kPieceBytes]);
  for (const int64_t end_bytes = at_bytes + size_bytes; at_bytes < end_bytes;) {
    const int64_t piece_bytes = std::min(kPieceBytes, end_bytes - at_bytes);
    const absl::string_view piece(bytes->Take(piece_bytes, room_.get()), piece_bytes);
    RETURN_IF_ERROR(WriteAt(fd_.get(), piece, at_bytes, path_));
    // After the write, on the same bytes: a source that changes under it would be noticed by
    // readers.
    if (crc32 != nullptr) *crc32 = Crc32(piece.data(), piece.size(), *crc32);
    if (wrote != nullptr) wrote(piece_bytes);
    at_bytes += piece_bytes;
  }
  return absl::OkStatus();
}

absl::Status RangeWriter::Sync() {
  // Before fsync, which covers only what has been written.
  if (direct_ != nullptr) RETURN_IF_ERROR(direct_->Await());
  // Of all that was written to the file, by whichever descriptor.
  if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync ", path_));
  return absl::OkStatus();
}

}  // namespace tessera
