#include "checkpoint/storage/direct_writes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/write_at.h"

namespace tessera {
namespace {

constexpr int64_t kBufferBytes = int64_t{2} << 20;  // A huge page.
// Checksums are computed while the copied bytes are in the CPU cache.
constexpr int64_t kCopiedBytes = int64_t{64} << 10;

// What a direct write to the file begins and ends at, so that nothing smaller is read and written
// back by anybody: a page of the cache and a block of the file system. 0: it has none.
int64_t BlockBytes(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return 0;
  int64_t block_bytes = std::max<int64_t>(info.st_blksize, sysconf(_SC_PAGESIZE));
#ifdef STATX_DIOALIGN
  struct statx more;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &more) == 0 &&
      (more.stx_mask & STATX_DIOALIGN) != 0) {
    if (more.stx_dio_offset_align == 0) return 0;
    block_bytes = std::max<int64_t>(block_bytes, more.stx_dio_offset_align);
  }
#endif
  const bool is_power_of_two = (block_bytes & (block_bytes - 1)) == 0;
  return is_power_of_two && block_bytes <= kBufferBytes ? block_bytes : 0;
}

bool HasNoDirectWrites(int error) { return error == EINVAL || error == EOPNOTSUPP; }

void TellOnce(const std::string& path) {
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    TESSERA_LOG(INFO, "{} is written through the page cache: its file system has no direct writes",
                path);
  }
}

void TakeSummed(ByteSource* from, int64_t size_bytes, char* to, uint32_t* crc32) {
  for (int64_t at = 0; at < size_bytes; at += kCopiedBytes) {
    const int64_t bytes = std::min(kCopiedBytes, size_bytes - at);
    const char* const taken = from->Take(bytes, to + at);
    if (taken != to + at) memcpy(to + at, taken, bytes);
    if (crc32 != nullptr) *crc32 = Crc32(to + at, bytes, *crc32);
  }
}

}  // namespace

DirectWrites::~DirectWrites() {
  // Nothing was written directly.
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }
  thread_.join();
}

absl::StatusOr<std::shared_ptr<DirectWrites::File>> DirectWrites::Open(const std::string& path) {
  auto file = std::make_shared<File>();
  file->path = path;
  // O_NOFOLLOW: a link that another process put there is not written through.
  file->cached.Reset(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file->cached.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  file->block_bytes = BlockBytes(file->cached.get());
  if (file->block_bytes > 0) {
    // A second descriptor: ends and refused pieces go through the cache.
    file->direct.Reset(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT | O_NOFOLLOW));
    if (file->direct.valid()) return file;
    if (!HasNoDirectWrites(errno)) return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  TellOnce(path);
  // null: the caller writes through the cache.
  return std::shared_ptr<File>();
}

absl::Status DirectWrites::Start() {
  for (Piece& piece : pieces_) {
    // Aligned, as direct writes need it.
    piece.buffer.reset(static_cast<char*>(aligned_alloc(kBufferBytes, kBufferBytes)));
    if (piece.buffer == nullptr)
      return absl::ResourceExhaustedError("no memory for a buffer of direct writes");
    (void)madvise(piece.buffer.get(), kBufferBytes, MADV_HUGEPAGE);  // Where there are any.
  }
  ASSIGN_OR_RETURN(thread_, StartThread("direct writes", [this] { Run(); }));
  return absl::OkStatus();
}

absl::Status DirectWrites::AwaitFree(const Piece& piece) {
  const auto is_free = [&piece] { return piece.file == nullptr; };
  // Without a deadline: a disk has none (ADR 67).
  absl::MutexLock lock(&mu_, absl::Condition(&is_free));
  return status_;
}

absl::Status DirectWrites::Write(std::shared_ptr<File> file, ByteSource* bytes, int64_t size_bytes,
                                 int64_t at_bytes, uint32_t* crc32,
                                 const std::function<void(int64_t bytes)>& wrote) {
  if (!thread_.joinable()) RETURN_IF_ERROR(Start());
  // This thread fills and sums a piece while the other one writes the piece before it.
  for (const int64_t end_bytes = at_bytes + size_bytes; at_bytes < end_bytes;) {
    Piece& piece = pieces_[next_piece_];
    RETURN_IF_ERROR(AwaitFree(piece));
    // Without the lock: a free piece is the filler's, and the lock below hands it over.
    piece.at_bytes = at_bytes;
    piece.size_bytes = std::min(kBufferBytes, end_bytes - at_bytes);
    TakeSummed(bytes, piece.size_bytes, piece.buffer.get(), crc32);
    // Counted when it is taken, not when it is on disk.
    if (wrote != nullptr) wrote(piece.size_bytes);
    at_bytes += piece.size_bytes;
    next_piece_ = (next_piece_ + 1) % kPieces;
    absl::MutexLock lock(&mu_);
    piece.file = file;
  }
  return absl::OkStatus();
}

absl::Status DirectWrites::Await() {
  absl::Status status;
  // Pieces are written in turn, so the last status has the error of any.
  for (const Piece& piece : pieces_) status = AwaitFree(piece);
  return status;
}

void DirectWrites::Run() {
  for (int next = 0;; next = (next + 1) % kPieces) {
    Piece& piece = pieces_[next];
    bool failed = false;
    {
      const auto is_woken = [this, &piece]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return piece.file != nullptr || over_;
      };
      absl::MutexLock lock(&mu_, absl::Condition(&is_woken));
      // Ended only when all that was given is written.
      if (piece.file == nullptr) return;
      failed = !status_.ok();
    }
    // After an error the rest is only taken off, so that the filler does not wait.
    const absl::Status status = failed ? absl::OkStatus() : WritePiece(piece);
    absl::MutexLock lock(&mu_);
    // The first error stays, since nothing is written after it.
    if (!status.ok()) status_ = status;
    // The lock that ends here gives the piece back to the filler.
    piece.file.reset();
  }
}

absl::Status DirectWrites::WritePiece(const Piece& piece) {
  File& file = *piece.file;
  ssize_t written = 0;
  if (!file.refused.load()) {
    do {
      written = pwrite(file.direct.get(), piece.buffer.get(), piece.size_bytes, piece.at_bytes);
    } while (written < 0 && errno == EINTR);
    // Some file systems refuse only at the first write.
    if (written < 0 && HasNoDirectWrites(errno)) {
      TellOnce(file.path);
      file.refused.store(true);
      written = 0;
    }
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", file.path));
    direct_bytes_.fetch_add(written);
  }
  // Of a write that was cut short the cache takes the rest, wherever that begins: no other range
  // has a byte of these blocks.
  const absl::string_view rest(piece.buffer.get() + written, piece.size_bytes - written);
  return WriteAt(file.cached.get(), rest, piece.at_bytes + written, file.path);
}

}  // namespace tessera
