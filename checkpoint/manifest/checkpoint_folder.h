// A checkpoint's folder: how it is published (named_folder.h), found again and retired.
//
//   BeginFolder: PATH.partial/ ──► files, manifest, all synced ──► PublishCheckpoint: PATH/
//
// Stateless; thread-safe for different paths. Errors: the file system's, with the path.
#ifndef TESSERA_CHECKPOINT_MANIFEST_CHECKPOINT_FOLDER_H_
#define TESSERA_CHECKPOINT_MANIFEST_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/manifest/named_folder.h"

namespace tessera {

// Writes the manifest, and gives the folder its name, durably. Errors: as NameFolder.
absl::Status PublishCheckpoint(const std::string& path, const Manifest& manifest,
                               Existing existing = Existing::kReplaced);

// Errors: NotFound         no such folder, or no manifest in it
//         InvalidArgument  as DecodeManifest; DataLoss  it is damaged.
absl::StatusOr<Manifest> ReadManifest(const std::string& path);
// Of a rank's part of a checkpoint: likewise.
absl::StatusOr<Manifest> ReadPartManifest(const std::string& path);

struct ListedCheckpoint {
  std::string path;
  int64_t step = 0;
  std::string job_id;
  int64_t size_bytes = 0;
  absl::Time saved_at;
};
// Those right below `folder`, by step and then path. What cannot be read is left out.
absl::StatusOr<std::vector<ListedCheckpoint>> ListCheckpoints(const std::string& folder);

// Removes a job's checkpoints next to `path`, which was just published: those that were saved
// first, so that with it at most `keep` are left. Each loses its name, durably, before its files,
// so that a crash leaves none that is damaged; what an earlier crash left so is removed too, an
// empty folder PATH.partial once it has been empty for an hour. Links stay. Requires keep >= 1.
// `removed`, if not null, gets the paths of those that have lost their names, also of an error.
absl::Status KeepNewest(const std::string& path, const std::string& job_id, int keep,
                        std::vector<std::string>* removed = nullptr);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_MANIFEST_CHECKPOINT_FOLDER_H_
