// Where files that somebody else than the worker's user names may be.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_FOLDER_CHECK_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_FOLDER_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Whether `path` is below one of the folders once all links that exist now are followed. A relative
// path is this process's. A key of an object store is compared as it is. Any user who may write to a folder on the way can still put a link there
// afterwards.
// Errors: PermissionDenied  names the path and the folders
absl::Status CheckBelow(const std::string& path, const std::vector<std::string>& folders);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_FOLDER_CHECK_H_
