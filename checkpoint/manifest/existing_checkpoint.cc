#include "checkpoint/manifest/existing_checkpoint.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {

absl::Status CheckNoCheckpointAt(const std::string& path) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  for (const absl::string_view manifest : {kManifestName, kPartManifestName}) {
    // If it cannot be seen whether there is one, it must not be replaced.
    ASSIGN_OR_RETURN(const std::optional<EntryInfo> there,
                     storage->Look(absl::StrCat(path, "/", manifest), Links::kSeen));
    if (!there.has_value()) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("there is a checkpoint at ", path, " already, which must not be replaced"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
