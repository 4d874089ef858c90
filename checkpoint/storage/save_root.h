// The folders below which clients may save.
#ifndef TESSERA_CHECKPOINT_STORAGE_SAVE_ROOT_H_
#define TESSERA_CHECKPOINT_STORAGE_SAVE_ROOT_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

// Makes the folder, an absolute path, if it is missing: for an owner's first save below a root like
// "/saves/{owner}". The folder that is to hold it must be there, so that a file system that is not
// mounted is noticed. Mode 0750. A link at its place is not followed. Does nothing in object stores.
// Errors: NotFound, PermissionDenied, ...  names the folder
absl::Status MakeSaveRoot(const std::string& root);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_SAVE_ROOT_H_
