// Whether a save would replace something. Stateless; thread-safe.
#ifndef TESSERA_CHECKPOINT_MANIFEST_EXISTING_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_MANIFEST_EXISTING_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

// Errors: AlreadyExists  there is a checkpoint at `path`, or a rank's part of one; one that is
//         damaged is one too. Something else is not an error: no save replaces it.
//         InvalidArgument  as StorageOf.
absl::Status CheckNoCheckpointAt(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_EXISTING_CHECKPOINT_H_
