#include "checkpoint/parts/consolidate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/named_folder.h"
#include "checkpoint/parts/part_set.h"
#include "checkpoint/safetensors/checked_file.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/model_files.h"

namespace tessera {
namespace {

class Consolidator {
 public:
  Consolidator(PartSet set, std::string path, const ConsolidateOptions& options)
      : set_(std::move(set)),
        path_(std::move(path)),
        folder_(PartialFolder(path_)),
        options_(options) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Plan());
    std::optional<FolderIdentity> made;
    absl::Status status = BeginFolder(path_, FolderKind::kCheckpoint, &made);
    if (status.ok()) status = Write();
    // Another save of the same path may have taken the folder away.
    if (status.ok()) status = CheckStillMade(path_, made);
    if (status.ok()) status = PublishCheckpoint(path_, manifest_);
    // Only the folder that this call made: another save may have made one there since.
    if (!status.ok()) DiscardFolder(path_, made);
    return status;
  }

  Consolidated result() const {
    return {manifest_, static_cast<int>(set_.parts.size()), set_.missing_ranks};
  }

 private:
  std::string PathOf(absl::string_view file) const { return absl::StrCat(folder_, "/", file); }

  absl::Status Plan() {
    ASSIGN_OR_RETURN(
        model_, PlanModelFiles(set_.model.tensors, set_.model.metadata, options_.max_file_bytes));
    ASSIGN_OR_RETURN(optimizer_, PlanModelFiles(set_.optimizer.tensors, set_.optimizer.metadata, 0,
                                                std::string(kOptimizerFileName)));
    all_bytes_ = model_.all_bytes() + optimizer_.all_bytes();
    manifest_ = set_.parts[0].manifest;
    manifest_.part.reset();
    // A consolidated checkpoint is not what a request asked for.
    manifest_.request.clear();  // That is done.
    manifest_.files.clear();
    AddTensorFiles(PartFile::kModel, model_);
    AddTensorFiles(PartFile::kOptimizer, optimizer_);
    if (!model_.index.empty()) {
      manifest_.files[kModelIndexName] = {
          static_cast<int64_t>(model_.index.size()), Crc32(model_.index), {}};
    }
    for (const FoundPart& part : set_.parts) {
      const std::string trainer = TrainerFileName(part.manifest.part->rank);
      const auto own = part.manifest.files.find(trainer);
      if (own == part.manifest.files.end()) continue;
      manifest_.files[trainer] = own->second;
      all_bytes_ += own->second.size_bytes;
    }
    return absl::OkStatus();
  }

  void AddTensorFiles(PartFile part, const ModelFilesPlan& plan) {
    for (const auto& [name, header] : plan.headers) {
      ManifestFile& file = manifest_.files[name];
      file.size_bytes = header.file_bytes;
      file.crc32 = Crc32(EncodeHeader(header));
      for (const auto& [tensor, stored] : header.tensors)
        // Sums of the parts' slices, combined: nothing is read twice.
        file.tensors[tensor] = set_.sums.at(NameOf({part, tensor, {}, 0, 0}));
      Done(header.data_offset_bytes);
    }
  }

  absl::Status Write() {
    RETURN_IF_ERROR(ModelFiles::Create(folder_, model_));
    RETURN_IF_ERROR(ModelFiles::Create(folder_, optimizer_));
    ModelFiles model(folder_, &model_), optimizer(folder_, &optimizer_);
    for (size_t i = 0; i < set_.parts.size(); ++i) {
      const FoundPart& part = set_.parts[i];
      ASSIGN_OR_RETURN(const CheckedFile shard,
                       CheckedFile::Open(part.folder, std::string(kPartFileName), part.manifest));
      for (const TakenSlice& taken : set_.taken[i]) {
        RETURN_IF_ERROR(
            Copy(shard, taken, taken.slice.file == PartFile::kModel ? &model : &optimizer));
      }
      RETURN_IF_ERROR(CopyTrainerFile(part));
    }
    // Before Publish: what has a name is whole and durable.
    RETURN_IF_ERROR(model.Sync());
    RETURN_IF_ERROR(optimizer.Sync());
    RETURN_IF_ERROR(ModelFiles::Publish(folder_, model_));
    return ModelFiles::Publish(folder_, optimizer_);
  }

  absl::Status Copy(const CheckedFile& shard, const TakenSlice& taken, ModelFiles* into) {
    // The copy is checked against the manifest slice by slice, while it is written.
    constexpr int64_t kPieceElements = 1 << 17;  // A multiple of 8, so that pieces end with bytes.
    const PartSlice& slice = taken.slice;
    uint32_t crc32 = kCrc32OfNothing;
    for (int64_t begin = 0; begin < slice.count; begin += kPieceElements) {
      const int64_t count = std::min(kPieceElements, slice.count - begin);
      piece_.resize(*SizeBytes(slice.whole.dtype, count));
      RETURN_IF_ERROR(shard.Read(taken.name, *SizeBytes(slice.whole.dtype, begin), piece_.size(),
                                 piece_.data(), &crc32));
      RETURN_IF_ERROR(into->WriteStored(slice.tensor, slice.begin_elements + begin, piece_));
      Done(static_cast<int64_t>(piece_.size()));
    }
    // After writing: a damaged part fails the whole, and nothing is published.
    return shard.Check(taken.name, crc32);
  }

  absl::Status CopyTrainerFile(const FoundPart& part) {
    const std::string name = TrainerFileName(part.manifest.part->rank);
    if (part.manifest.files.count(name) == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string bytes, ReadCheckedBytes(part.folder, name, part.manifest));
    RETURN_IF_ERROR(WriteWholeFile(PathOf(name), bytes));
    Done(static_cast<int64_t>(bytes.size()));
    return absl::OkStatus();
  }

  void Done(int64_t bytes) {
    done_bytes_ += bytes;
    if (options_.progress != nullptr) options_.progress(done_bytes_, all_bytes_);
  }

  const PartSet set_;
  const std::string path_, folder_;
  const ConsolidateOptions& options_;
  ModelFilesPlan model_, optimizer_;
  Manifest manifest_;
  std::string piece_;
  int64_t all_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<Consolidated> Consolidate(const std::vector<std::string>& part_folders,
                                         const std::string& path,
                                         const ConsolidateOptions& options) {
  ASSIGN_OR_RETURN(PartSet set, FindParts(part_folders, options.allow_missing_ranks));
  Consolidator consolidator(std::move(set), path, options);
  RETURN_IF_ERROR(consolidator.Run());
  return consolidator.result();
}

}  // namespace tessera
