#include "checkpoint/named_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/file_io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_index.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool Has(const std::string& folder, absl::string_view name) {
  std::error_code error;
  return fs::exists(absl::StrCat(folder, "/", name), error);
}

// What a save puts into a folder, finished or not.
bool IsOfASave(const std::string& name) {
  const absl::string_view whole = absl::StripSuffix(name, ".partial");
  return name == kManifestName || name == kPartManifestName || name == kModelIndexName ||
         IsModelFileName(whole) || whole == kOptimizerFileName || whole == kPartFileName ||
         (absl::StartsWith(name, "trainer-") && absl::EndsWith(name, ".bin"));
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    names.push_back(entries->path().filename().string());
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  return names;
}

// Whether nothing but what saves put there is in it.
absl::Status CheckIsOfSaves(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (IsOfASave(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " holds '", name, "', which is of no checkpoint or model, so it is not removed"));
  }
  return absl::OkStatus();
}

// Some network file systems know no flags.
bool RefusesFlags(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

const char* NameOf(FolderKind kind) {
  switch (kind) {
    case FolderKind::kCheckpoint:
      return "checkpoint";
    case FolderKind::kModel:
      return "folder of a model alone";
    case FolderKind::kPart:
      return "part of a checkpoint";
  }
  return "";
}

bool IsOfKind(const std::string& folder, FolderKind kind) {
  switch (kind) {
    case FolderKind::kCheckpoint:
      return Has(folder, kManifestName);
    case FolderKind::kModel: {
      const auto names = NamesIn(folder);
      return names.ok() && CheckIsOfSaves(folder, *names).ok() && !Has(folder, kManifestName) &&
             (Has(folder, kModelIndexName) || Has(folder, kSingleFileName));
    }
    case FolderKind::kPart:
      return Has(folder, kPartManifestName);
  }
  return false;
}

// Whether something has that name; one of the kind may be replaced, nothing else.
absl::StatusOr<bool> IsTaken(const std::string& path, FolderKind kind) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  if (S_ISDIR(info.st_mode) && IsOfKind(path, kind)) return true;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " exists and is no ", NameOf(kind), ", so it is not replaced"));
}

}  // namespace

std::string PartialFolder(const std::string& path) { return path + ".partial"; }

absl::Status RemoveFolder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error))) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(folder));
  RETURN_IF_ERROR(CheckIsOfSaves(folder, names));
  // The manifest last: it says whose leftover this is if a crash ends the removal.
  std::partition(names.begin(), names.end(),
                 [](const std::string& name) { return name != kManifestName; });
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove ", path));
  }
  if (rmdir(folder.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove ", folder));
  return absl::OkStatus();
}

absl::Status RenameFolder(const std::string& from, const std::string& to, bool exchange) {
  const unsigned flags = exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return absl::OkStatus();
  if (RefusesFlags(errno) && exchange) {
    return absl::FailedPreconditionError(absl::StrCat("this file system cannot exchange ", from,
                                                      " and ", to,
                                                      ": give each checkpoint a name of its own"));
  }
  // Nothing has that name, or only an empty folder.
  if (RefusesFlags(errno) && rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("rename ", from, " to ", to));
}

absl::Status BeginFolder(const std::string& path, FolderKind kind) {
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(kind), " '", path, "' is no absolute path of a folder"));
  }
  RETURN_IF_ERROR(IsTaken(path, kind).status());
  const std::string partial = PartialFolder(path);
  RETURN_IF_ERROR(RemoveFolder(partial));
  RETURN_IF_ERROR(FaultPoint("checkpoint.begin"));
  if (mkdir(partial.c_str(), 0755) != 0)
    return ErrnoStatus(errno, absl::StrCat("make folder ", partial));
  return absl::OkStatus();
}

absl::StatusOr<bool> NameFolder(const std::string& path, FolderKind kind) {
  const std::string partial = PartialFolder(path);
  RETURN_IF_ERROR(SyncFolder(partial));
  ASSIGN_OR_RETURN(const bool replaces, IsTaken(path, kind));
  RETURN_IF_ERROR(FaultPoint("checkpoint.rename"));
  RETURN_IF_ERROR(RenameFolder(partial, path, replaces));
  (void)FaultPoint("checkpoint.renamed");
  if (const absl::Status synced = SyncFolder(ParentOf(path)); !synced.ok()) {
    UnnameFolder(path, replaces);  // Who is told of an error finds what was there before.
    return synced;
  }
  (void)FaultPoint("checkpoint.published");
  return replaces;
}

void UnnameFolder(const std::string& path, bool had_another) {
  (void)RenameFolder(path, PartialFolder(path), had_another);
}

absl::Status PublishFolder(const std::string& path, FolderKind kind) {
  ASSIGN_OR_RETURN(const bool replaces, NameFolder(path, kind));
  if (replaces) DiscardFolder(path);  // What has the partial one's name now is the old one.
  return absl::OkStatus();
}

void DiscardFolder(const std::string& path) { (void)RemoveFolder(PartialFolder(path)); }

}  // namespace tessera
