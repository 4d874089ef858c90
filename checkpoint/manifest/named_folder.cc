#include "checkpoint/manifest/named_folder.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/storage/storage_of.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
namespace {

absl::StatusOr<bool> Has(Storage* storage, const std::string& folder, absl::string_view name) {
  ASSIGN_OR_RETURN(const auto found, storage->Look(absl::StrCat(folder, "/", name)));
  return found.has_value();
}

// What a save puts into a folder, finished or not.
// What may be removed without being asked. A list, so that a wrong path costs no user a file.
bool IsOfASave(const std::string& name) {
  const absl::string_view whole = absl::StripSuffix(name, ".partial");
  return name == kManifestName || name == kPartManifestName || name == kModelIndexName ||
         IsModelFileName(whole) || whole == kOptimizerFileName || whole == kPartFileName ||
         (absl::StartsWith(name, "trainer-") && absl::EndsWith(name, ".bin"));
}

// Whether nothing but what saves put there is in it.
absl::Status CheckIsOfSaves(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (IsOfASave(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " holds '", name,
                     "', which belongs to no checkpoint or model, so the folder is not removed"));
  }
  return absl::OkStatus();
}

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

// Errors: the storage's. What could not be looked at is of no kind: it may be what must stay.
absl::StatusOr<bool> IsOfKind(Storage* storage, const std::string& folder, FolderKind kind) {
  switch (kind) {
    case FolderKind::kCheckpoint:
      return Has(storage, folder, kManifestName);
    case FolderKind::kModel: {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
      // A folder with anything else in it is somebody's work.
      if (!CheckIsOfSaves(folder, names).ok()) return false;
      ASSIGN_OR_RETURN(const bool is_checkpoint, Has(storage, folder, kManifestName));
      if (is_checkpoint) return false;
      ASSIGN_OR_RETURN(const bool has_index, Has(storage, folder, kModelIndexName));
      return has_index ? absl::StatusOr<bool>(true) : Has(storage, folder, kSingleFileName);
    }
    case FolderKind::kPart:
      return Has(storage, folder, kPartManifestName);
  }
  return false;
}

// What has that name, if anything; one of the kind may be replaced, nothing else.
absl::StatusOr<std::optional<FolderIdentity>> HolderOf(Storage* storage, const std::string& path,
                                                       FolderKind kind) {
  ASSIGN_OR_RETURN(const std::optional<EntryInfo> there, storage->Look(path, Links::kSeen));
  if (!there.has_value()) return std::nullopt;
  if (there->kind == EntryInfo::Kind::kFolder) {
    ASSIGN_OR_RETURN(const bool is_of_kind, IsOfKind(storage, path, kind));
    if (is_of_kind) return there->identity;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " exists and is not a ", NameOf(kind), ", so it is not replaced"));
}

absl::Status Taken(const std::string& path, FolderKind kind) {
  return absl::AlreadyExistsError(absl::StrCat("there is a ", NameOf(kind), " at ", path,
                                               " already, which must not be replaced"));
}

}  // namespace

std::string PartialFolder(const std::string& path) { return PartialPath(path); }

absl::Status RemoveFolder(const std::string& folder, Removal removal) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(folder));
  ASSIGN_OR_RETURN(const std::optional<EntryInfo> there, storage->Look(folder, Links::kSeen));
  if (!there.has_value()) return absl::OkStatus();
  if (there->kind != EntryInfo::Kind::kFolder) {  // What a link leads to is somebody else's.
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in the way, and is not removed, because it is not a folder"));
  }
  ASSIGN_OR_RETURN(std::vector<std::string> names, storage->List(folder));
  // All names before the first removal: a folder is removed whole or not touched.
  RETURN_IF_ERROR(CheckIsOfSaves(folder, names));
  const auto manifest = std::partition(
      names.begin(), names.end(), [](const std::string& name) { return name != kManifestName; });
  const auto remove = [&](const std::string& name) {
    return storage->RemoveFile(absl::StrCat(folder, "/", name));
  };
  // The manifest last: until then a crash leaves a folder that is known as this job's leftover.
  for (auto name = names.begin(); name != manifest; ++name) RETURN_IF_ERROR(remove(*name));
  if (manifest != names.end()) {
    // A power loss must not keep the manifest and lose a file that it names.
    if (removal == Removal::kForGood) RETURN_IF_ERROR(storage->SyncFolder(folder));
    RETURN_IF_ERROR(remove(*manifest));
  }
  // Refused where another save has put a file there since the list was made.
  return storage->RemoveEmptyFolder(folder);
}

absl::Status BeginFolder(const std::string& path, FolderKind kind,
                         std::optional<FolderIdentity>* made) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  if (!IsAbsolutePath(path) || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(kind), " '", path, "' is not the absolute path of a folder"));
  }
  RETURN_IF_ERROR(CheckSavePath(path));
  // Refused at the beginning, and not after all of it was written.
  RETURN_IF_ERROR(HolderOf(storage, path, kind).status());
  const std::string partial = PartialFolder(path);
  // A leftover of an earlier attempt. Another save that runs there finds it gone: see
  // CheckStillMade.
  RETURN_IF_ERROR(RemoveFolder(partial));
  RETURN_IF_ERROR(FaultPoint("checkpoint.begin"));
  // Fails where another save has made it since: no two write into one folder.
  RETURN_IF_ERROR(storage->MakeFolder(partial));
  if (made == nullptr) return absl::OkStatus();
  // Which folder this is, by inode and not by name.
  const auto there = storage->Look(partial, Links::kSeen);
  if (there.ok() && there->has_value()) *made = (*there)->identity;
  return there.status();
}

absl::Status CheckStillMade(const std::string& path, const std::optional<FolderIdentity>& made) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  const std::string partial = PartialFolder(path);
  ASSIGN_OR_RETURN(const std::optional<EntryInfo> there, storage->Look(partial, Links::kSeen));
  if (made.has_value() && there.has_value() && there->identity == *made) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      partial, " is not the folder that this save created: another save writes to ", path));
}

absl::StatusOr<std::optional<FolderIdentity>> NameFolder(const std::string& path, FolderKind kind,
                                                         Existing existing) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  // Looked at again: saves take long, and another one may have published meanwhile.
  ASSIGN_OR_RETURN(const std::optional<FolderIdentity> holder, HolderOf(storage, path, kind));
  if (holder.has_value() && existing == Existing::kRefused) return Taken(path, kind);
  // Without an exchange it is refused, too, where another got the name since that look.
  const absl::Status published =
      storage->PublishFolder(PartialFolder(path), path, holder.has_value());
  if (existing == Existing::kRefused && absl::IsAlreadyExists(published)) return Taken(path, kind);
  RETURN_IF_ERROR(published);
  return holder;
}

// After an error. If it fails too, there is nothing better to do.
void UnnameFolder(const std::string& path, bool had_another) {
  const absl::StatusOr<Storage*> storage = StorageOf(path);
  if (storage.ok()) (void)(*storage)->UnpublishFolder(path, PartialFolder(path), had_another);
}

absl::Status PublishFolder(const std::string& path, FolderKind kind, Existing existing) {
  ASSIGN_OR_RETURN(const std::optional<FolderIdentity> replaced, NameFolder(path, kind, existing));
  // What has the partial one's name now is the old one, or another save's that began meanwhile.
  // Only if it is still the folder that was replaced.
  DiscardFolder(path, replaced);
  return absl::OkStatus();
}

void DiscardFolder(const std::string& path) { (void)RemoveFolder(PartialFolder(path)); }

void DiscardFolder(const std::string& path, const std::optional<FolderIdentity>& made) {
  // The identity decides, so another save's folder with the same name stays.
  if (made.has_value() && CheckStillMade(path, made).ok()) DiscardFolder(path);
}

}  // namespace tessera
