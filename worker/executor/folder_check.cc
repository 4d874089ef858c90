#include "worker/executor/folder_check.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool IsBelow(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] =
      std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end() && in_path != path.end();
}

}  // namespace

absl::Status CheckBelow(const std::string& path, const std::vector<std::string>& folders) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path real = error ? fs::path() : fs::weakly_canonical(absolute, error);
  if (!error) {
    for (const std::string& folder : folders) {
      std::error_code unreadable;
      const fs::path real_folder = fs::weakly_canonical(folder, unreadable);
      if (!unreadable && IsBelow(real, real_folder)) return absl::OkStatus();
    }
  }
  const std::string where = error ? absl::StrCat(" (", error.message(), ")")
                            : real == absolute.lexically_normal()
                                ? ""
                                : absl::StrCat(", which is ", real.string());
  return absl::PermissionDeniedError(
      absl::StrCat("path '", path, "'", where,
                   " is not below a folder that the coordinator allows (--save-root): ",
                   folders.empty() ? "it allows none" : absl::StrJoin(folders, ", ")));
}

}  // namespace tessera
