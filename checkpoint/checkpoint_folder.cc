#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

std::string ManifestPath(const std::string& folder) {
  return absl::StrCat(folder, "/", kManifestName);
}

// What a save puts into a folder, finished or not.
bool IsOfACheckpoint(const std::string& name) {
  return name == kManifestName || absl::StartsWith(name, kModelFileName) ||
         absl::StartsWith(name, kOptimizerFileName) ||
         (absl::StartsWith(name, "trainer-") && absl::EndsWith(name, ".bin"));
}

// Nothing but what saves put there is removed; a folder with anything else stays.
absl::Status Remove(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  std::vector<std::string> names;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    names.push_back(entries->path().filename().string());
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  for (const std::string& name : names) {
    if (IsOfACheckpoint(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " holds '", name, "', which is of no checkpoint, so it is not removed"));
  }
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove ", path));
  }
  if (rmdir(folder.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove ", folder));
  return absl::OkStatus();
}

// Some network file systems know no flags.
bool RefusesFlags(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

absl::Status Rename(const std::string& from, const std::string& to, bool exchange) {
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

// Whether something has that name; a checkpoint may be replaced, nothing else.
absl::StatusOr<bool> IsCheckpoint(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  std::error_code error;
  if (S_ISDIR(info.st_mode) && fs::exists(ManifestPath(path), error)) return true;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " exists and is no checkpoint, so it is not replaced"));
}

}  // namespace

std::string PartialFolder(const std::string& path) { return path + ".partial"; }

absl::Status BeginCheckpoint(const std::string& path) {
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint '", path, "' is no absolute path of a folder"));
  }
  RETURN_IF_ERROR(IsCheckpoint(path).status());
  const std::string partial = PartialFolder(path);
  RETURN_IF_ERROR(Remove(partial));
  RETURN_IF_ERROR(FaultPoint("checkpoint.begin"));
  if (mkdir(partial.c_str(), 0755) != 0)
    return ErrnoStatus(errno, absl::StrCat("make folder ", partial));
  return absl::OkStatus();
}

absl::Status PublishCheckpoint(const std::string& path, const Manifest& manifest) {
  const std::string partial = PartialFolder(path);
  RETURN_IF_ERROR(WriteWholeFile(ManifestPath(partial), EncodeManifest(manifest)));
  RETURN_IF_ERROR(SyncFolder(partial));
  ASSIGN_OR_RETURN(const bool replaces, IsCheckpoint(path));
  RETURN_IF_ERROR(FaultPoint("checkpoint.rename"));
  RETURN_IF_ERROR(Rename(partial, path, replaces));
  (void)FaultPoint("checkpoint.renamed");
  if (const absl::Status synced = SyncFolder(ParentOf(path)); !synced.ok()) {
    (void)Rename(path, partial, replaces);  // Who is told of an error finds what was there before.
    return synced;
  }
  (void)FaultPoint("checkpoint.published");
  if (replaces) DiscardCheckpoint(path);  // What has the partial one's name now is the old one.
  return absl::OkStatus();
}

void DiscardCheckpoint(const std::string& path) { (void)Remove(PartialFolder(path)); }

absl::StatusOr<Manifest> ReadManifest(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(ManifestPath(path), kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = DecodeManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

absl::StatusOr<std::vector<ListedCheckpoint>> ListCheckpoints(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  std::vector<ListedCheckpoint> found;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string path = entries->path().string();
    if (absl::EndsWith(path, ".partial")) continue;
    const absl::StatusOr<Manifest> manifest = ReadManifest(path);
    struct stat info;
    if (!manifest.ok() || stat(ManifestPath(path).c_str(), &info) != 0) continue;
    ListedCheckpoint& listed = found.emplace_back();
    listed = {path, manifest->step, manifest->job_id, 0, absl::TimeFromTimespec(info.st_mtim)};
    for (const auto& [name, file] : manifest->files) listed.size_bytes += file.size_bytes;
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return found;
}

namespace {

// What a crash left of a job's checkpoint that was being removed, or was not published.
void RemoveLeftovers(const std::string& folder, const std::string& job_id) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string path = entries->path().string();
    if (!absl::EndsWith(path, ".partial")) continue;
    const absl::StatusOr<Manifest> manifest = ReadManifest(path);
    if (manifest.ok() && manifest->job_id == job_id) (void)Remove(path);
  }
}

}  // namespace

absl::Status KeepNewest(const std::string& path, const std::string& job_id, int keep) {
  const std::string folder = ParentOf(path);
  RemoveLeftovers(folder, job_id);
  ASSIGN_OR_RETURN(std::vector<ListedCheckpoint> others, ListCheckpoints(folder));
  const auto is_other = [&](const ListedCheckpoint& listed) {
    std::error_code error;
    return listed.job_id == job_id && !fs::is_symlink(listed.path, error) &&
           !fs::equivalent(listed.path, path, error);
  };
  others.erase(std::remove_if(others.begin(), others.end(),
                              [&](const auto& listed) { return !is_other(listed); }),
               others.end());
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
    return std::tie(a.saved_at, a.path) < std::tie(b.saved_at, b.path);
  });
  for (size_t i = 0; i + keep - 1 < others.size(); ++i) {
    const std::string gone = PartialFolder(others[i].path);
    RETURN_IF_ERROR(Remove(gone));
    RETURN_IF_ERROR(Rename(others[i].path, gone, /*exchange=*/false));
    RETURN_IF_ERROR(FaultPoint("checkpoint.retired"));
    RETURN_IF_ERROR(Remove(gone));
  }
  return absl::OkStatus();
}

}  // namespace tessera
