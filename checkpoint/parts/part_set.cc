#include "checkpoint/parts/part_set.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/parts/slice_cover.h"
#include "checkpoint/safetensors/checked_file.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {
namespace {

// More than any job has: bounds the list of missing ranks.
constexpr int kMaxRanks = 1 << 20;

// Errors: the storage's. A part that cannot be looked at is not one that is missing.
absl::StatusOr<bool> IsPart(Storage* storage, const std::string& folder) {
  ASSIGN_OR_RETURN(const auto there, storage->Look(absl::StrCat(folder, "/", kPartManifestName)));
  return there.has_value();
}

absl::StatusOr<std::vector<std::string>> PartFoldersIn(const std::string& folder) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(folder));
  ASSIGN_OR_RETURN(const bool is_itself, IsPart(storage, folder));
  if (is_itself) return std::vector<std::string>{folder};
  ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
    // A partial one is being written, or was left by a save that died.
    if (absl::EndsWith(path, ".partial")) continue;
    ASSIGN_OR_RETURN(const bool is_part, IsPart(storage, path));
    if (is_part) found.push_back(path);
  }
  if (found.empty())
    return absl::NotFoundError(absl::StrCat(folder, " holds no part of a checkpoint"));
  std::sort(found.begin(), found.end());
  return found;
}

absl::StatusOr<FoundPart> ReadPart(const std::string& folder) {
  FoundPart part;
  part.folder = folder;
  ASSIGN_OR_RETURN(part.manifest, ReadPartManifest(folder));
  for (const auto& [name, file] : part.manifest.files) {
    // Only files with names of this format are read.
    if (name == kPartFileName || name == TrainerFileName(part.manifest.part->rank)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": '", name, "' does not belong to a part"));
  }
  ASSIGN_OR_RETURN(const CheckedFile shard,
                   CheckedFile::Open(folder, std::string(kPartFileName), part.manifest));
  absl::StatusOr<PartContents> contents = DecodePart(shard.header());
  if (!contents.ok()) return Annotate(contents.status(), folder);
  part.contents = *std::move(contents);
  return part;
}

std::string NumbersOf(const Manifest& manifest) {
  Manifest only;
  only.groups = manifest.groups;
  only.optimizer = manifest.optimizer;
  return EncodeManifest(only);
}

absl::Status CheckSameSave(const FoundPart& a, const FoundPart& b) {
  const Manifest &first = a.manifest, &second = b.manifest;
  std::string what;
  if (first.job_id != second.job_id) what = "job";
  if (what.empty() && first.step != second.step) what = "step";
  if (what.empty() && first.world_size != second.world_size) what = "world size";
  // Parts of two saves of the same step may differ in anything else.
  if (what.empty() && first.part->save_id != second.part->save_id) what = "save";
  if (what.empty() && NumbersOf(first) != NumbersOf(second)) what = "optimizer";
  if (what.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      a.folder, " and ", b.folder, " do not belong to one save: they differ in the ", what));
}

// Sorts them by rank, each once.
absl::Status OrderParts(std::vector<FoundPart>* parts) {
  std::map<int, FoundPart*> by_rank;
  for (FoundPart& part : *parts) {
    RETURN_IF_ERROR(CheckSameSave(parts->front(), part));
    const int rank = part.manifest.part->rank;
    const FoundPart& known = *by_rank.try_emplace(rank, &part).first->second;
    // A part that is given twice is the same one.
    if (EncodeManifest(known.manifest) == EncodeManifest(part.manifest)) continue;
    return absl::DataLossError(absl::StrCat(known.folder, " and ", part.folder,
                                            " are both of rank ", rank, " and not the same"));
  }
  std::vector<FoundPart> ordered;
  for (const auto& [rank, part] : by_rank) ordered.push_back(std::move(*part));
  *parts = std::move(ordered);
  return absl::OkStatus();
}

absl::Status CheckRanks(bool allow_missing_ranks, PartSet* set) {
  const FoundPart& first = set->parts.front();
  // Rank 0's part has the list of all tensors.
  if (first.manifest.part->rank != 0 || !first.contents.whole.has_value())
    return absl::NotFoundError("the part of rank 0, which says what there is, is not given");
  if (first.manifest.world_size > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(first.folder, " has ", first.manifest.world_size,
                                                   " ranks, more than ", kMaxRanks));
  }
  for (int rank = 0, at = 0; rank < first.manifest.world_size; ++rank) {
    if (at < set->parts.size() && set->parts[at].manifest.part->rank == rank) {
      ++at;
    } else if (allow_missing_ranks) {
      set->missing_ranks.push_back(rank);
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("the part of rank ", rank, " is not given: of ranks 0 to ",
                       first.manifest.world_size - 1, " there are ", set->parts.size()));
    }
  }
  return absl::OkStatus();
}

// What is held of a tensor, by NameOf.
using Held = std::map<std::string, std::vector<HeldSlice>>;

absl::StatusOr<Held> Collect(const std::vector<FoundPart>& parts,
                             const std::map<std::string, TensorInfo>& wanted) {
  Held held;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ManifestFile& shard = parts[i].manifest.files.at(std::string(kPartFileName));
    for (const auto& [name, slice] : parts[i].contents.slices) {
      const auto info = wanted.find(name);
      // Parts hold what rank 0 says that there is, and nothing else.
      if (info == wanted.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(parts[i].folder, ": the checkpoint has no tensor '", name, "'"));
      }
      if (info->second.shape != slice.whole.shape || info->second.dtype != slice.whole.dtype) {
        return absl::InvalidArgumentError(absl::StrCat(
            parts[i].folder, ": tensor '", name, "' is ", Name(slice.whole.dtype), " [",
            absl::StrJoin(slice.whole.shape, ", "), "], in rank 0's part ",
            Name(info->second.dtype), " [", absl::StrJoin(info->second.shape, ", "), "]"));
      }
      held[name].push_back(
          {static_cast<int>(i), slice.begin_elements, slice.count, shard.tensors.at(name)});
    }
  }
  return held;
}

absl::StatusOr<std::map<std::string, TensorInfo>> WantedOf(const PartSet& set) {
  std::map<std::string, TensorInfo> wanted;
  for (const PartFile file : {PartFile::kModel, PartFile::kOptimizer}) {
    for (const auto& [tensor, info] :
         (file == PartFile::kModel ? set.model : set.optimizer).tensors) {
      if (!wanted.emplace(NameOf({file, tensor, {}, 0, 0}), info).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(set.parts[0].folder, ": tensor '", tensor, "' is there twice"));
      }
    }
  }
  return wanted;
}

absl::Status Cover(PartSet* set) {
  ASSIGN_OR_RETURN(const auto wanted, WantedOf(*set));
  ASSIGN_OR_RETURN(Held held, Collect(set->parts, wanted));
  set->taken.resize(set->parts.size());
  const auto folder_of = [&](int holder) { return set->parts[holder].folder; };
  for (const auto& [name, info] : wanted) {
    ASSIGN_OR_RETURN(const int64_t numel, NumelOf(info));
    ASSIGN_OR_RETURN(const std::vector<HeldSlice> taken,
                     CoverOnce(name, numel, held[name], folder_of));
    uint32_t crc32 = kCrc32OfNothing;
    for (const HeldSlice& slice : taken) {
      // In the order of the tensor's elements, so that sums combine.
      crc32 = CombineCrc32(crc32, slice.crc32, *SizeBytes(info.dtype, slice.count));
      set->taken[slice.holder].push_back({name, set->parts[slice.holder].contents.slices.at(name)});
    }
    set->sums[name] = crc32;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PartSet> FindParts(const std::vector<std::string>& folders,
                                  bool allow_missing_ranks) {
  PartSet set;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> found, PartFoldersIn(folder));
    for (const std::string& path : found) {
      ASSIGN_OR_RETURN(FoundPart part, ReadPart(path));
      set.parts.push_back(std::move(part));
    }
  }
  if (set.parts.empty()) return absl::NotFoundError("no part of a checkpoint is given");
  RETURN_IF_ERROR(OrderParts(&set.parts));
  RETURN_IF_ERROR(CheckRanks(allow_missing_ranks, &set));
  std::tie(set.model, set.optimizer) = *set.parts[0].contents.whole;
  // Proved from the lists alone, before any tensor is read (ADR 29).
  RETURN_IF_ERROR(Cover(&set));
  return set;
}

}  // namespace tessera
