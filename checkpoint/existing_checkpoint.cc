#include "checkpoint/existing_checkpoint.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checkpoint/manifest.h"

namespace tessera {

absl::Status CheckNoCheckpointAt(const std::string& path) {
  for (const absl::string_view manifest : {kManifestName, kPartManifestName}) {
    struct stat info;
    if (lstat(absl::StrCat(path, "/", manifest).c_str(), &info) != 0) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("there is a checkpoint at ", path, " already, which must not be replaced"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
