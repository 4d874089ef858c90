// The storages that there are, by the paths that they have (storage_path.h). Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_OF_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_OF_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/storage/storage.h"

namespace tessera {

// `path`: plain (PlainPath). Not owned; there until the process ends.
// Errors: InvalidArgument  as PlainPath's, or it is not plain.
absl::StatusOr<Storage*> StorageOf(absl::string_view path);

// The folder that contains `path`, with a '/' at its end.
std::string ParentOf(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_OF_H_
