// Whole files, and what makes a change of a folder durable. Stateless; thread-safe.
// Errors of all: the file system's, with the path: NotFound, PermissionDenied, ResourceExhausted
// (disk full), Internal (I/O error).
#ifndef TESSERA_CHECKPOINT_FILE_IO_H_
#define TESSERA_CHECKPOINT_FILE_IO_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Writes and syncs.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes);
// Errors: also ResourceExhausted  it has more than max_bytes; InvalidArgument  no regular file.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// Writes all of them at that place of the file, which is at `path`.
absl::Status WriteAt(int fd, absl::string_view bytes, int64_t at_bytes, const std::string& path);
absl::Status SyncFolder(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_FILE_IO_H_
