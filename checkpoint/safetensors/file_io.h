// Whole files, in any storage (storage/storage.h). Stateless; thread-safe.
// Errors of both: the storage's, with the path: NotFound, PermissionDenied, ResourceExhausted
// (disk full), Internal (I/O error).
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_FILE_IO_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_FILE_IO_H_

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

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_FILE_IO_H_
