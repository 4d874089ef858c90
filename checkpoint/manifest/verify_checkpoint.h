// Whether a checkpoint is whole: every byte is read and compared with the manifest's checksums.
// Stateless; thread-safe.
#ifndef TESSERA_CHECKPOINT_MANIFEST_VERIFY_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_MANIFEST_VERIFY_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest/manifest.h"

namespace tessera {

struct Verification {
  Manifest manifest;
  std::vector<absl::Status> damages;  // By file and tensor; empty: it is whole.
};

// `progress`, if not null, is told how many bytes of how many are read.
// Errors: of the manifest (checkpoint_folder.h): nothing can be said then.
absl::StatusOr<Verification> VerifyCheckpoint(
    const std::string& folder,
    const std::function<void(int64_t done_bytes, int64_t all_bytes)>& progress = nullptr);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_VERIFY_CHECKPOINT_H_
