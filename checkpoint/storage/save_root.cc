#include "checkpoint/storage/save_root.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
namespace {

constexpr mode_t kMode = 0750;

}  // namespace

absl::Status MakeSaveRoot(const std::string& root) {
  struct stat found;
  if (!SchemeOf(root).empty() || stat(root.c_str(), &found) == 0) return absl::OkStatus();
  const std::filesystem::path path(WithoutSlashes(root));
  const UniqueFd holder(open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  // Relative to the open folder, so that the name is made where it was looked up.
  if (holder.valid() && mkdirat(holder.get(), path.filename().c_str(), kMode) == 0)
    return absl::OkStatus();
  // Another rank made it, or a link is there: the caller has checked where that leads.
  if (errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("make the folder ", root, " for saves"));
}

}  // namespace tessera
