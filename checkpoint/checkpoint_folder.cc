#include "checkpoint/checkpoint_folder.h"

#include <sys/stat.h>

#include <algorithm>
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

template <typename Decode>
absl::StatusOr<Manifest> Read(const std::string& path, absl::string_view name, Decode decode) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadWholeFile(absl::StrCat(path, "/", name), kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = decode(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace

absl::Status PublishCheckpoint(const std::string& path, const Manifest& manifest) {
  RETURN_IF_ERROR(WriteWholeFile(ManifestPath(PartialFolder(path)), EncodeManifest(manifest)));
  return PublishFolder(path, FolderKind::kCheckpoint);
}

absl::StatusOr<Manifest> ReadManifest(const std::string& path) {
  return Read(path, kManifestName, DecodeManifest);
}

absl::StatusOr<Manifest> ReadPartManifest(const std::string& path) {
  return Read(path, kPartManifestName, DecodePartManifest);
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
    if (manifest.ok() && manifest->job_id == job_id) (void)RemoveFolder(path);
  }
}

}  // namespace

absl::Status KeepNewest(const std::string& path, const std::string& job_id, int keep,
                        std::vector<std::string>* removed) {
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
    RETURN_IF_ERROR(RemoveFolder(gone));
    RETURN_IF_ERROR(RenameFolder(others[i].path, gone, /*exchange=*/false));
    if (removed != nullptr) removed->push_back(others[i].path);
    // Else a power loss could keep the name and lose the files.
    RETURN_IF_ERROR(SyncFolder(folder));
    RETURN_IF_ERROR(FaultPoint("checkpoint.retired"));
    RETURN_IF_ERROR(RemoveFolder(gone));
  }
  return absl::OkStatus();
}

}  // namespace tessera
