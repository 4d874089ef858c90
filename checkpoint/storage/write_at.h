// Writing all of some bytes, whatever a call takes at a time. Stateless; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_WRITE_AT_H_
#define TESSERA_CHECKPOINT_STORAGE_WRITE_AT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Writes all of them at that place of the file, which is at `path`. Errors: the file system's, with
// the path.
absl::Status WriteAt(int fd, absl::string_view bytes, int64_t at_bytes, const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_WRITE_AT_H_
