// The local file system, or one that hosts share, as POSIX has it (storage.h).
//
//   PublishFile, PublishFolder: rename, or renameat2(EXCHANGE) ──► fsync of the folder above
//
// Files are read by pread alone: an error of a page that is mapped would be a signal. Ranges are
// written through the page cache or past it (range_writer.h). Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.h"

namespace tessera {

class PosixStorage final : public Storage {
 public:
  absl::Status CreateFile(const std::string& path, int64_t size_bytes,
                          absl::string_view beginning) override;
  absl::StatusOr<std::unique_ptr<RangeSink>> OpenToWrite(const std::string& path,
                                                         DirectWrites* direct) override;
  absl::Status WriteWhole(const std::string& path, absl::string_view bytes) override;
  absl::Status PublishFile(const std::string& partial, const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override;
  absl::Status RemoveFile(const std::string& path) override;

  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status PublishFolder(const std::string& partial, const std::string& path,
                             bool exchange) override;
  absl::Status UnpublishFolder(const std::string& path, const std::string& partial,
                               bool exchange) override;
  absl::Status RetireFolder(const std::string& path, const std::string& partial) override;
  absl::Status RemoveEmptyFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  absl::StatusOr<std::optional<EntryInfo>> Look(const std::string& path, Links links) override;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_
