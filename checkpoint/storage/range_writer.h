// Writes ranges of a file that is there in its full size and that other processes write too.
//
//   a large range:  | its first bytes |       whole blocks       | its last bytes |
//                     page cache        DirectWrites, if asked for  page cache
//
// A direct write of a file's whole block neither copies it into the page cache nor waits there to
// be written back. A block that ranges share is written through the cache by each of their writers,
// so nobody's bytes come from a block as somebody else once read it (docs/adr/0036).
//
// What it writes, what it tells and its errors are a RangeSink's (storage.h). Move-only;
// thread-compatible.
#ifndef TESSERA_CHECKPOINT_STORAGE_RANGE_WRITER_H_
#define TESSERA_CHECKPOINT_STORAGE_RANGE_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/byte_source.h"
#include "checkpoint/storage/direct_writes.h"
#include "checkpoint/storage/storage.h"

namespace tessera {

class RangeWriter final : public RangeSink {
 public:
  // `direct`: what large ranges go through, not owned, outlives this; null: nothing does.
  // Errors of all: the file system's, with the path: NotFound, PermissionDenied, ResourceExhausted
  // (disk full), Internal (I/O error).
  static absl::StatusOr<RangeWriter> Open(std::string path, DirectWrites* direct);
  // `fd`: of the file at `path`, for writing.
  RangeWriter(UniqueFd fd, std::string path, DirectWrites* direct)
      : fd_(std::move(fd)), path_(std::move(path)), direct_(direct) {}

  using RangeSink::Write;
  absl::Status Write(ByteSource* bytes, int64_t at_bytes, uint32_t* crc32 = nullptr,
                     const Wrote& wrote = nullptr) override;
  absl::Status Sync() override;

  const std::string& path() const override { return path_; }

 private:
  // Bytes of a file, half-open.
  struct Extent {
    int64_t begin_bytes = 0, end_bytes = 0;
  };

  // The range's whole blocks, if they are worth direct writes, else nothing of it.
  absl::StatusOr<Extent> BlocksOf(int64_t begin_bytes, int64_t end_bytes);
  // The next size_bytes of `bytes`.
  absl::Status WriteCached(ByteSource* bytes, int64_t size_bytes, int64_t at_bytes, uint32_t* crc32,
                           const Wrote& wrote);

  UniqueFd fd_;
  std::string path_;
  DirectWrites* direct_;
  std::shared_ptr<DirectWrites::File> direct_file_;  // From the first large range on.
  std::unique_ptr<char[]> room_;  // For bytes that do not stay where they are; untouched else.
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_RANGE_WRITER_H_
