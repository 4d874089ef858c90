#include "worker/executor/save/folder_check.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool IsBelow(const fs::path& path, const fs::path& folder) {
  // By parts of the path: /data is not below /dat.
  const auto [in_folder, in_path] =
      std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end() && in_path != path.end() && !in_path->empty();
}

// Where the absolute path leads; empty: not to be told, and `why`. What is not there yet is taken
// as it is written, so that it must not lead back, nor be a link to what is not there.
fs::path RealPath(const fs::path& absolute, std::string* why) {
  std::error_code error;
  fs::path so_far;
  for (const fs::path& part : absolute) {
    so_far /= part;
    // '..' after a link leads elsewhere than it looks.
    if (part == "..") {
      *why = " has '..' in it,";
      return {};
    }
    // The save would create what the link names.
    if (fs::is_symlink(fs::symlink_status(so_far, error)) && !fs::exists(so_far, error)) {
      *why = absl::StrCat(", where ", so_far.string(), " is a link to nothing,");
      return {};
    }
  }
  const fs::path real = fs::weakly_canonical(absolute, error);
  if (!error) return real;
  *why = absl::StrCat(" (", error.message(), ")");
  return {};
}

// A key leads where it says: there are no links, and PlainPath refuses "..".
bool IsKeyBelow(const std::string& path, const std::vector<std::string>& folders) {
  const absl::StatusOr<std::string> plain = PlainPath(path);
  return plain.ok() && std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
           return !SchemeOf(folder).empty() && absl::StartsWith(*plain, absl::StrCat(folder, "/"));
         });
}

}  // namespace

absl::Status CheckBelow(const std::string& path, const std::vector<std::string>& folders) {
  std::error_code error;
  std::string why;
  const bool is_key = !SchemeOf(path).empty();
  if (is_key && IsKeyBelow(path, folders)) return absl::OkStatus();
  const fs::path absolute = fs::absolute(path, error);
  const fs::path real = error || is_key ? fs::path() : RealPath(absolute, &why);
  if (!real.empty()) {
    for (const std::string& folder : folders) {
      if (!SchemeOf(folder).empty()) continue;
      const fs::path real_folder = fs::weakly_canonical(folder, error);
      // A link may be exchanged after this look: such roots are for users whom the worker trusts
      // (docs/adr/0068).
      if (!error && IsBelow(real, real_folder)) return absl::OkStatus();
    }
    if (real != absolute.lexically_normal()) why = absl::StrCat(", which is ", real.string(), ",");
  }
  return absl::PermissionDeniedError(
      absl::StrCat("path '", path, "'", why,
                   " is not below a folder that the coordinator allows (--save-root): ",
                   folders.empty() ? "it allows none" : absl::StrJoin(folders, ", ")));
}

}  // namespace tessera
