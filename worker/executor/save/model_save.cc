#include "worker/executor/save/model_save.h"

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/named_folder.h"
#include "checkpoint/safetensors/model_files.h"
#include "checkpoint/safetensors/rounded_values.h"
#include "checkpoint/storage/direct_writes.h"
#include "job/job_codec.h"
#include "worker/executor/agreement.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

// Where the files grow, and what they are.
struct Target {
  bool is_folder = false;  // It gets its name as one, else the file does.
  std::string path;
  std::string folder;  // That the files are made in.
  ModelFilesPlan files;
};

// `buffers`: the trainers' own tensors, which are never rounded.
absl::StatusOr<ModelFilesPlan> PlanFiles(const v1::SaveRequest& request, const ModelLayout& layout,
                                         const std::vector<NamedTensorInfo>& buffers,
                                         const std::string& single_name) {
  std::vector<NamedTensorInfo> tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::optional<DType> dtype;
  if (request.spec().save_dtype() != v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(dtype, DecodeDType(request.spec().save_dtype()));
    metadata["tessera.save_dtype"] = std::string(Name(*dtype));
  }
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      TensorSpec spec = parameter.spec;
      spec.dtype = FullDType(spec.dtype);
      if (dtype.has_value()) spec.dtype = SavedDType(spec.dtype, *dtype);
      tensors.push_back(InfoOf(spec));
    }
    // Shared storage is not representable in the format; the alias is recorded instead.
    for (const Alias& alias : unit.flat.aliases()) metadata[alias.name] = alias.primary;
  }
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return PlanModelFiles(tensors, metadata, request.spec().max_file_bytes(), single_name);
}

absl::StatusOr<Target> TargetOf(const v1::SaveRequest& request, const ModelLayout& layout,
                                const google::protobuf::RepeatedPtrField<v1::NamedTensor>& shared) {
  Target target;
  ASSIGN_OR_RETURN(const std::vector<NamedTensorInfo> buffers, InfosOf(shared));
  target.is_folder = request.spec().max_file_bytes() > 0;
  target.path = request.spec().path();
  const size_t slash = target.path.rfind('/');
  target.folder = target.is_folder ? PartialFolder(target.path) : target.path.substr(0, slash);
  ASSIGN_OR_RETURN(target.files,
                   PlanFiles(request, layout, buffers, target.path.substr(slash + 1)));
  return target;
}

absl::Status Begin(const Target& target, std::optional<FolderIdentity>* made) {
  // A folder grows under another name and is renamed. A single file does the same by itself.
  if (target.is_folder) RETURN_IF_ERROR(BeginFolder(target.path, FolderKind::kModel, made));
  RETURN_IF_ERROR(ModelFiles::Create(target.folder, target.files));
  return FaultPoint("save.created");
}

// `request`: its buffers are those to write.
absl::Status WriteOwn(const Target& target, const v1::SaveRequest& request,
                      const ModelLayout& layout, const std::vector<ShardSegment>& segments,
                      const SavedState& state, const std::atomic<bool>& stopped,
                      int64_t direct_write_bytes) {
  DirectWrites direct(direct_write_bytes);
  ModelFiles files(target.folder, &target.files, &direct);
  for (const ShardSegment& segment : segments) {
    // Between slices, so that an epoch that ends does not wait for the file.
    if (stopped.load()) return absl::AbortedError("the epoch ended");
    const PlacedParameter& parameter =
        layout.units[segment.unit].flat.parameters()[segment.parameter];
    RETURN_IF_ERROR(files.WriteSlice(parameter.spec.name, segment.parameter_begin_elements,
                                     state.values(StateArray::kParameter, segment)));
  }
  for (const v1::NamedTensor& buffer : request.buffers())
    RETURN_IF_ERROR(files.WriteBytes(buffer.name(), buffer.values()));
  // On disk before the ranks agree.
  return files.Sync();
}

absl::Status Publish(const Target& target, const std::optional<FolderIdentity>& made) {
  if (target.is_folder) RETURN_IF_ERROR(CheckStillMade(target.path, made));
  // Files first, then the folder's name.
  RETURN_IF_ERROR(ModelFiles::Publish(target.folder, target.files));
  if (!target.is_folder) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStillMade(target.path, made));  // Renames and syncs take their time.
  return PublishFolder(target.path, FolderKind::kModel);
}

absl::Status WriteAndPublish(const v1::SaveRequest& request, const ModelLayout& layout,
                             const std::vector<ShardSegment>& segments, const SavedState& state,
                             Communicator* communicator, const std::atomic<bool>* stopped,
                             int64_t direct_write_bytes, std::optional<FolderIdentity>* made) {
  const bool leads = communicator->rank() == 0;
  ASSIGN_OR_RETURN(const auto buffers, ShareBuffers(request, communicator));
  const absl::StatusOr<Target> target = TargetOf(request, layout, buffers);
  // Not returned yet: the other ranks wait for this one's word.
  absl::Status own = target.status();
  if (own.ok() && leads) own = Begin(*target, made);
  RETURN_IF_ERROR(AgreeOn("save", own, communicator));
  // Buffers are written once, by rank 0: an empty request has none.
  own = WriteOwn(*target, leads ? request : v1::SaveRequest(), layout, segments, state, *stopped,
                 direct_write_bytes);
  RETURN_IF_ERROR(AgreeOn("save", own, communicator));
  return AgreeOn("save", leads ? Publish(*target, *made) : absl::OkStatus(), communicator);
}

}  // namespace

absl::Status SaveModel(const v1::SaveRequest& request, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const SavedState& state,
                       Communicator* communicator, const std::atomic<bool>* stopped,
                       int64_t direct_write_bytes) {
  std::optional<FolderIdentity> made;
  const absl::Status status = WriteAndPublish(request, layout, segments, state, communicator,
                                              stopped, direct_write_bytes, &made);
  // Only the rank that creates removes.
  if (communicator->rank() != 0 || status.ok()) return status;
  if (request.spec().max_file_bytes() > 0) {
    DiscardFolder(request.spec().path(), made);
  } else {
    ModelFile::Discard(request.spec().path());
  }
  return status;
}

}  // namespace tessera
