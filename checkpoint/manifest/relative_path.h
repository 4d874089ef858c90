// Names of files that a file of anybody's gives. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_MANIFEST_RELATIVE_PATH_H_
#define TESSERA_CHECKPOINT_MANIFEST_RELATIVE_PATH_H_

#include "absl/strings/string_view.h"

namespace tessera {

// Whether `path` names something in a folder that it is relative to, or below: not empty, not
// absolute, no "." or "..", no NUL. Where links in the folder lead is the folder owner's affair.
bool StaysInFolder(absl::string_view path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_RELATIVE_PATH_H_
