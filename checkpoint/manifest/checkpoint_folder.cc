#include "checkpoint/manifest/checkpoint_folder.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// `folder` may end in '/'.
std::string PathIn(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

std::string ManifestPath(const std::string& folder) {
  return absl::StrCat(folder, "/", kManifestName);
}

// Why `name` cannot be read in `path`. A model's file or folder is a common mistake.
absl::Status WhyNoManifest(const std::string& path, absl::string_view name,
                           const absl::Status& why) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  const absl::StatusOr<std::optional<EntryInfo>> entry = storage->Look(path);
  const bool is_there = entry.ok() && entry->has_value();
  if (is_there && (*entry)->kind == EntryInfo::Kind::kFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a file, and a checkpoint is a folder with ", name,
                     ". Of a model's file, `tessera ls` checks names, shapes and size"));
  }
  if (is_there && absl::IsNotFound(why)) {
    return absl::NotFoundError(absl::StrCat(path, " is not a checkpoint: it has no ", name,
                                            ". `tessera checkpoints` lists those in a folder"));
  }
  return why;
}

template <typename Decode>
absl::StatusOr<Manifest> Read(const std::string& path, absl::string_view name, Decode decode) {
  RETURN_IF_ERROR(StorageOf(path).status());  // Whose error has the path as it was given.
  const absl::StatusOr<std::string> text =
      ReadWholeFile(absl::StrCat(path, "/", name), kMaxManifestBytes);
  if (!text.ok()) return WhyNoManifest(path, name, text.status());
  absl::StatusOr<Manifest> manifest = decode(*text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace

absl::Status PublishCheckpoint(const std::string& path, const Manifest& manifest,
                               Existing existing) {
  // The manifest goes into the partial folder: when the folder gets its name, it is complete.
  RETURN_IF_ERROR(WriteWholeFile(ManifestPath(PartialFolder(path)), EncodeManifest(manifest)));
  return PublishFolder(path, FolderKind::kCheckpoint, existing);
}

absl::StatusOr<Manifest> ReadManifest(const std::string& path) {
  return Read(path, kManifestName, DecodeManifest);
}

absl::StatusOr<Manifest> ReadPartManifest(const std::string& path) {
  return Read(path, kPartManifestName, DecodePartManifest);
}

absl::StatusOr<std::vector<ListedCheckpoint>> ListCheckpoints(const std::string& folder) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
  std::vector<ListedCheckpoint> found;
  for (const std::string& name : names) {
    // Unfinished, whatever is in it.
    if (absl::EndsWith(name, ".partial")) continue;
    const std::string path = PathIn(folder, name);
    const absl::StatusOr<Manifest> manifest = ReadManifest(path);
    const absl::StatusOr<std::optional<EntryInfo>> info = storage->Look(ManifestPath(path));
    // Folders of others, or one that is removed right now.
    if (!manifest.ok() || !info.ok() || !info->has_value()) continue;
    ListedCheckpoint& listed = found.emplace_back();
    listed = {path, manifest->step, manifest->job_id, 0, (*info)->changed_at};
    for (const auto& [name, file] : manifest->files) listed.size_bytes += file.size_bytes;
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return found;
}

namespace {

// Of the folder at `path`; nullopt where it cannot be told.
std::optional<EntryInfo> LookAt(Storage* storage, const std::string& path, Links links) {
  const absl::StatusOr<std::optional<EntryInfo>> info = storage->Look(path, links);
  return info.ok() ? *info : std::nullopt;
}

// A save that is about to start has an empty folder too, but only until it creates its first file.
constexpr absl::Duration kEmptyForGood = absl::Hours(1);

// What a crash left of a job's checkpoint that was being removed, or was not published; and folders
// of any job that have been empty since long before `now`, which is the storage's time.
void RemoveLeftovers(Storage* storage, const std::string& folder, const std::string& job_id,
                     absl::Time now) {
  const absl::StatusOr<std::vector<std::string>> names = storage->List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, ".partial")) continue;
    const std::string path = PathIn(folder, name);
    const absl::StatusOr<Manifest> manifest = ReadManifest(path);
    // Only with this job's id: another job's partial folder may be a save that runs.
    if (manifest.ok() && manifest->job_id == job_id) (void)RemoveFolder(path, Removal::kForGood);
    const std::optional<EntryInfo> info = LookAt(storage, path, Links::kSeen);
    // Without a manifest nobody's. Only an empty one is safe to remove.
    if (absl::IsNotFound(manifest.status()) && info.has_value() &&
        info->kind == EntryInfo::Kind::kFolder && info->changed_at < now - kEmptyForGood) {
      (void)storage->RemoveEmptyFolder(path);  // Refused if anything is in it.
    }
  }
}

}  // namespace

absl::Status KeepNewest(const std::string& path, const std::string& job_id, int keep,
                        std::vector<std::string>* removed) {
  const std::string folder = ParentOf(path);
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  const std::optional<EntryInfo> own = LookAt(storage, path, Links::kFollowed);
  // The storage's time, not this node's: clocks of nodes differ.
  if (own.has_value()) RemoveLeftovers(storage, folder, job_id, own->changed_at);
  ASSIGN_OR_RETURN(std::vector<ListedCheckpoint> others, ListCheckpoints(folder));
  const auto is_other = [&](const ListedCheckpoint& listed) {
    if (listed.job_id != job_id) return false;
    const std::optional<EntryInfo> info = LookAt(storage, listed.path, Links::kSeen);
    // A link may lead to a checkpoint that another name holds.
    // Where the new checkpoint itself cannot be seen, no older one is taken for superfluous.
    return own.has_value() && info.has_value() && info->kind != EntryInfo::Kind::kLink &&
           info->identity != own->identity;
  };
  others.erase(std::remove_if(others.begin(), others.end(),
                              [&](const auto& listed) { return !is_other(listed); }),
               others.end());
  // By when they were saved: a job that goes back saves lower steps later.
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
    return std::tie(a.saved_at, a.path) < std::tie(b.saved_at, b.path);
  });
  for (size_t i = 0; i + keep - 1 < others.size(); ++i) {
    const std::string gone = PartialFolder(others[i].path);
    // What an earlier crash left under this name would be in the way of the rename.
    RETURN_IF_ERROR(RemoveFolder(gone, Removal::kForGood));
    // Durably, else a power loss could keep the name and lose the files.
    const absl::Status retired = storage->RetireFolder(others[i].path, gone);
    // Reported even if the sync fails: the name is gone.
    const auto named = storage->Look(others[i].path, Links::kSeen);
    if (named.ok() && !named->has_value() && removed != nullptr) removed->push_back(others[i].path);
    RETURN_IF_ERROR(retired);
    RETURN_IF_ERROR(FaultPoint("checkpoint.retired"));
    // A crash before its end leaves a manifest with this job's id: RemoveLeftovers finds it.
    RETURN_IF_ERROR(RemoveFolder(gone, Removal::kForGood));
  }
  return absl::OkStatus();
}

}  // namespace tessera
