#include "worker/executor/save/part_save.h"

#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/existing_checkpoint.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/parts/checkpoint_part.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/storage/direct_writes.h"
#include "checkpoint/storage/storage_of.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/agreement.h"
#include "worker/executor/save/checkpoint_plan.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

// The same on all ranks, and no other save's.
absl::StatusOr<std::string> AgreeOnSaveId(Communicator* communicator) {
  std::array<uint64_t, 2> id;
  // Parts are joined by this id, so it must not repeat in any other save.
  std::random_device random;
  for (uint64_t& word : id) word = (uint64_t{random()} << 32) | random();
  RETURN_IF_ERROR(communicator->Broadcast(id.data(), sizeof(id), /*root=*/0));
  return absl::StrFormat("%016x%016x", id[0], id[1]);
}

class PartSave {
 public:
  PartSave(const v1::SaveRequest& request, const ExecutorMemory& memory, const StateToSave& state,
           Communicator* communicator, const SaveControl& control)
      : request_(request),
        memory_(memory),
        state_(state),
        communicator_(*communicator),
        control_(control),
        leads_(communicator->rank() == 0),
        path_(PartPath(request, memory.rank)),
        folder_(PartialFolder(path_)),
        has_state_(HasStates(memory.layout, state.progress)) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const auto buffers, ShareBuffers(request_, &communicator_));
    ASSIGN_OR_RETURN(save_id_, AgreeOnSaveId(&communicator_));
    RETURN_IF_ERROR(AgreeOn("save", Begin(buffers), &communicator_));
    RETURN_IF_ERROR(AddUpSizes());
    absl::Status own = Write();
    // The last look at the flags before names change; as in checkpoint_save.cc.
    if (own.ok()) own = CheckGoesOn(control_);
    RETURN_IF_ERROR(AgreeOn("save", own, &communicator_));
    // Each rank names its own part. If one fails, all undo theirs.
    return AgreeOn("save", Name(), &communicator_);
  }

  // Nothing of this save is left, and what had the name has it again. `together`: all ranks do
  // this.
  absl::Status Undo(bool together) {
    // What had the name comes back.
    if (is_named_) UnnameFolder(path_, replaced_.has_value());
    DiscardFolder(path_, made_);
    absl::Status agreed;
    // Before the folder goes: peers' parts are in it.
    if (together)
      agreed = AgreeOn("save", absl::OkStatus(), &communicator_);  // Theirs are gone too.
    // Not empty, or another's by now: it stays.
    if (made_folder_) (void)storage_->RemoveEmptyFolder(request_.spec().path());
    return agreed;
  }
  // Only once all ranks have named theirs: until then the replaced part may have to come back.
  void Finish() { DiscardFolder(path_, replaced_); }

  int64_t written_bytes() const { return all_parts_bytes_; }

 private:
  absl::Status AddUpSizes() {
    std::vector<int64_t> sizes(communicator_.size());
    // Each rank's reply is of the whole checkpoint, not of its part.
    RETURN_IF_ERROR(communicator_.AllGather(&header_.file_bytes, sizes.data(), sizeof(int64_t)));
    all_parts_bytes_ = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    return absl::OkStatus();
  }

  std::string PathOf(absl::string_view file) const { return absl::StrCat(folder_, "/", file); }

  // What an earlier try of the same request left loses its name: with this one's parts it makes no
  // checkpoint.
  absl::Status MakeRoom() {
    const auto in_place = storage_->Look(path_, Links::kSeen);
    if (in_place.ok() && !in_place->has_value()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Manifest there, ReadPartManifest(path_));
    if (!control_.asked_for.empty() && there.request == control_.asked_for) {
      RETURN_IF_ERROR(RemoveFolder(folder_));
      return storage_->RetireFolder(path_, folder_);  // Which the beginning removes.
    }
    if (request_.spec().no_overwrite()) return CheckNoCheckpointAt(path_);  // It came meanwhile.
    if (there.job_id == memory_.job_id && there.step == state_.progress.step)
      return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " belongs to step ", there.step, " of job '", there.job_id,
        "': parts of another step are not replaced, so each save needs a path of its own"));
  }

  absl::Status Begin(const google::protobuf::RepeatedPtrField<v1::NamedTensor>& shared) {
    ASSIGN_OR_RETURN(const std::vector<NamedTensorInfo> buffers, InfosOf(shared));
    ASSIGN_OR_RETURN(plan_, PlanCheckpoint(memory_.layout, memory_.config, state_.progress, buffers,
                                           /*max_file_bytes=*/0));
    Collect(buffers);
    absl::StatusOr<SafetensorsHeader> header = PlacePart(contents_);
    RETURN_IF_ERROR(header.status());
    header_ = *std::move(header);
    ASSIGN_OR_RETURN(storage_, StorageOf(request_.spec().path()));
    const absl::Status made = storage_->MakeFolder(request_.spec().path());
    // Ranks race for it. It does not matter which one makes it.
    made_folder_ = made.ok();
    if (!made_folder_ && !absl::IsAlreadyExists(made)) return made;
    // Whichever rank made it: else a power loss could take all parts with the folder's name. One
    // that was its user's may be in a folder that cannot be synced: that is the user's matter, and
    // a rank that made it fails for all.
    const absl::Status synced = storage_->SyncFolder(ParentOf(request_.spec().path()));
    if (!synced.ok() && made_folder_) return synced;
    // Before this save's folder: what has the name may be another job's, and then nothing is
    // begun.
    RETURN_IF_ERROR(MakeRoom());
    RETURN_IF_ERROR(BeginFolder(path_, FolderKind::kPart, &made_));
    RETURN_IF_ERROR(ModelFile::Create(PathOf(kPartFileName), header_));
    return FaultPoint("save.created");
  }

  // The slices that this rank writes, in their order.
  std::vector<CheckpointSlice> OwnSlices() const {
    return SlicesToWrite(request_, memory_, has_state_);
  }

  static PartSlice PlaceOf(const CheckpointSlice& slice, const std::vector<int64_t>& shape) {
    const bool is_model = slice.array == StateArray::kParameter;
    return {is_model ? PartFile::kModel : PartFile::kOptimizer,
            slice.tensor.second,
            {StoredAs(slice.segment.dtype), shape},
            slice.segment.parameter_begin_elements,
            slice.segment.numel};
  }

  void Add(PartSlice slice) {
    std::string name = NameOf(slice);
    contents_.slices.emplace(std::move(name), std::move(slice));
  }

  void AddWhole(PartFile file, const NamedTensorInfo& tensor) {
    const absl::StatusOr<int64_t> numel = NumelOf(tensor.info);
    Add({file, tensor.name, tensor.info, 0, numel.value_or(0)});  // Of a plan, so it has one.
  }

  void Collect(const std::vector<NamedTensorInfo>& buffers) {
    for (const CheckpointSlice& slice : OwnSlices()) {
      const UnitLayout& unit = memory_.layout.units[slice.segment.unit];
      Add(PlaceOf(slice, unit.flat.parameters()[slice.segment.parameter].spec.shape));
    }
    // Buffers and update counts are rank 0's, as in a whole checkpoint.
    if (!leads_) return;
    for (const NamedTensorInfo& buffer : buffers) AddWhole(PartFile::kModel, buffer);
    ForEachParameter(memory_.layout, [&](const PlacedParameter& parameter, int number) {
      if (!has_state_[number]) return;
      AddWhole(PartFile::kOptimizer, {StepTensor(parameter.spec.name), {StoredDType::kF32, {}}});
    });
    contents_.whole.emplace(WholeOf(plan_->model.headers.begin()->second),
                            WholeOf(plan_->optimizer));
  }

  static WholeFile WholeOf(const SafetensorsHeader& header) {
    WholeFile whole;
    whole.metadata = header.metadata;
    for (const auto& [name, stored] : header.tensors)
      whole.tensors.push_back({name, {stored.dtype, stored.shape}});
    return whole;
  }

  absl::Status WriteWhole(ModelFile* file, const std::string& name, absl::string_view bytes) {
    sums_[name] = Crc32(bytes);
    return file->WriteBytes(name, bytes);
  }

  absl::Status WriteRankZeros(ModelFile* file) {
    for (const v1::NamedTensor& buffer : request_.buffers()) {
      const PartSlice slice = {PartFile::kModel, buffer.name(), {}, 0, 0};
      RETURN_IF_ERROR(WriteWhole(file, NameOf(slice), buffer.values()));
    }
    absl::Status status;
    ForEachParameter(memory_.layout, [&](const PlacedParameter& parameter, int number) {
      if (!has_state_[number] || !status.ok()) return;
      const float updates = state_.progress.update_counts[number];
      const PartSlice slice = {PartFile::kOptimizer, StepTensor(parameter.spec.name), {}, 0, 0};
      status = WriteWhole(file, NameOf(slice),
                          {reinterpret_cast<const char*>(&updates), sizeof(updates)});
    });
    return status;
  }

  absl::Status WriteShard() {
    DirectWrites direct(control_.direct_write_bytes);
    ASSIGN_OR_RETURN(ModelFile file, ModelFile::Open(PathOf(kPartFileName), header_, &direct));
    for (const CheckpointSlice& slice : OwnSlices()) {
      RETURN_IF_ERROR(CheckGoesOn(control_));
      const std::string name = NameOf(PlaceOf(slice, {}));
      uint32_t& crc32 = sums_[name] = kCrc32OfNothing;
      const std::unique_ptr<ByteSource> bytes = state_.bytes(slice);
      RETURN_IF_ERROR(
          file.WriteSlice(name, 0, slice.segment.dtype, bytes.get(), &crc32, control_.wrote));
    }
    if (leads_) RETURN_IF_ERROR(WriteRankZeros(&file));
    RETURN_IF_ERROR(file.Sync());
    // Before its files get their names: the folder must still be this save's.
    RETURN_IF_ERROR(CheckStillMade(path_, made_));
    return ModelFile::Publish(PathOf(kPartFileName));
  }

  absl::Status Write() {
    RETURN_IF_ERROR(WriteShard());
    const int rank = memory_.rank.value();
    Manifest manifest =
        ManifestFor(memory_.job_id, memory_.layout, memory_.config, state_.progress);
    // The id tells parts of one save from those of another try, which make no checkpoint together.
    manifest.part = ManifestPart{rank, save_id_};
    manifest.request = control_.asked_for;
    manifest.files[std::string(kPartFileName)] = {header_.file_bytes, Crc32(EncodeHeader(header_)),
                                                  sums_};
    if (const std::string& own = request_.trainer_state(); !own.empty()) {
      const std::string name = TrainerFileName(rank);
      RETURN_IF_ERROR(WriteWholeFile(PathOf(name), own));
      manifest.files[name] = {static_cast<int64_t>(own.size()), Crc32(own), {}};
    }
    // Last in the folder: a part without a manifest is unfinished.
    RETURN_IF_ERROR(WriteWholeFile(PathOf(kPartManifestName), EncodeManifest(manifest)));
    return FaultPoint("save.written");
  }

  absl::Status Name() {
    RETURN_IF_ERROR(CheckStillMade(path_, made_));
    ASSIGN_OR_RETURN(replaced_, NameFolder(path_, FolderKind::kPart,
                                           request_.spec().no_overwrite() ? Existing::kRefused
                                                                          : Existing::kReplaced));
    // From here on an error of another rank has the name taken back.
    is_named_ = true;
    return absl::OkStatus();
  }

  const v1::SaveRequest& request_;
  const ExecutorMemory& memory_;
  const StateToSave& state_;
  Communicator& communicator_;
  const SaveControl control_;
  const bool leads_;
  const std::string path_, folder_;
  const std::vector<bool> has_state_;  // By parameter of the job.
  Storage* storage_ = nullptr;         // From the beginning of its folder on.
  std::string save_id_;
  std::optional<CheckpointPlan> plan_;
  PartContents contents_;
  SafetensorsHeader header_;
  int64_t all_parts_bytes_ = 0;           // Of all ranks.
  std::map<std::string, uint32_t> sums_;  // By tensor of the shard.
  bool made_folder_ = false, is_named_ = false;
  std::optional<FolderIdentity> made_;
  std::optional<FolderIdentity> replaced_;  // Once the part has its name: which other had it.
};

}  // namespace

std::string PartPath(const v1::SaveRequest& request, Rank rank) {
  return absl::StrCat(request.spec().path(), "/", PartFolderName(rank.value()));
}

absl::Status SaveParts(const v1::SaveRequest& request, const ExecutorMemory& memory,
                       const StateToSave& state, Communicator* communicator,
                       const SaveControl& control, v1::SaveReply* reply) {
  PartSave save(request, memory, state, communicator, control);
  const absl::Status status = save.Run();
  reply->set_written_bytes(save.written_bytes());
  if (status.ok()) {
    save.Finish();
    return status;
  }
  // Where the ranks did not agree, some may be gone, and are not waited for.
  const absl::Status undone = save.Undo(/*together=*/IsAgreed(status));
  return undone.ok() ? status : undone;
}

}  // namespace tessera
