#include "worker/executor/save/checkpoint_save.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/manifest/named_folder.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/model_files.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/storage/direct_writes.h"
#include "worker/executor/agreement.h"
#include "worker/executor/save/checkpoint_plan.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

class CheckpointSave {
 public:
  CheckpointSave(const v1::SaveRequest& request, const ExecutorMemory& memory,
                 const StateToSave& state, Communicator* communicator, const SaveControl& control)
      : request_(request),
        memory_(memory),
        state_(state),
        communicator_(*communicator),
        leads_(communicator->rank() == 0),
        folder_(PartialFolder(request.spec().path())),
        has_state_(HasStates(memory.layout, state.progress)),
        control_(control) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const auto buffers, ShareBuffers(request_, &communicator_));
    // Each AgreeOn is a point that every rank must reach, with whatever error it has.
    RETURN_IF_ERROR(AgreeOn("save", Begin(buffers), &communicator_));
    // After this no rank writes any more.
    RETURN_IF_ERROR(AgreeOn("save", WriteOwn(), &communicator_));
    // Only rank 0 needs them. All gather, since the communicator has no other way to it.
    ASSIGN_OR_RETURN(const std::vector<SliceSums> sums, GatherSums(sums_, &communicator_));
    // The last time: from here on it is published. What was taken after the epoch had ended means
    // nothing, and ends here.
    RETURN_IF_ERROR(AgreeOn("save", CheckGoesOn(control_), &communicator_));
    // A folder with a name must be complete, so its name comes last.
    return AgreeOn("save", leads_ ? Publish(sums) : absl::OkStatus(), &communicator_);
  }

  std::vector<std::string> TakeRemoved() { return std::move(removed_); }
  // Nothing of this save is left, and nothing of another's is touched.
  void Undo() { DiscardFolder(request_.spec().path(), made_); }
  int64_t written_bytes() const {
    return plan_.has_value() ? plan_->model.all_bytes() + plan_->optimizer.file_bytes : 0;
  }

 private:
  std::string PathOf(absl::string_view file) const { return absl::StrCat(folder_, "/", file); }

  absl::Status Begin(const google::protobuf::RepeatedPtrField<v1::NamedTensor>& shared) {
    ASSIGN_OR_RETURN(const std::vector<NamedTensorInfo> buffers, InfosOf(shared));
    // On every rank, though one creates: each needs to know where its slices go.
    ASSIGN_OR_RETURN(plan_, PlanCheckpoint(memory_.layout, memory_.config, state_.progress, buffers,
                                           request_.spec().max_file_bytes()));
    // One rank creates, all write: the files have their size before anybody writes.
    if (!leads_) return absl::OkStatus();
    RETURN_IF_ERROR(CreateFiles());
    return FaultPoint("save.created");
  }

  absl::Status CreateFiles() {
    RETURN_IF_ERROR(BeginFolder(request_.spec().path(), FolderKind::kCheckpoint, &made_));
    RETURN_IF_ERROR(ModelFiles::Create(folder_, plan_->model));
    return ModelFile::Create(PathOf(kOptimizerFileName), plan_->optimizer);
  }

  // Rank 0 alone has these.
  absl::Status WriteBuffers(ModelFiles* model) {
    for (const v1::NamedTensor& buffer : request_.buffers()) {
      RETURN_IF_ERROR(model->WriteBytes(buffer.name(), buffer.values()));
      whole_sums_[{std::string(kModelFileName), buffer.name()}] = Crc32(buffer.values());
    }
    return absl::OkStatus();
  }

  absl::Status WriteUpdateCounts(ModelFile* optimizer) {
    absl::Status status;
    ForEachParameter(memory_.layout, [&](const PlacedParameter& parameter, int number) {
      if (!has_state_[number] || !status.ok()) return;
      const std::string tensor = StepTensor(parameter.spec.name);
      const float updates = state_.progress.update_counts[number];
      const absl::string_view bytes(reinterpret_cast<const char*>(&updates), sizeof(updates));
      status = optimizer->WriteBytes(tensor, bytes);
      whole_sums_[{std::string(kOptimizerFileName), tensor}] = Crc32(bytes);
    });
    return status;
  }

  absl::Status WriteOwn() {
    // Another save of the same path may have taken the folder away.
    if (leads_) RETURN_IF_ERROR(CheckStillMade(request_.spec().path(), made_));
    // Large writes bypass the page cache (docs/adr/0036).
    DirectWrites direct(control_.direct_write_bytes);
    ModelFiles model(folder_, &plan_->model, &direct);
    ASSIGN_OR_RETURN(ModelFile optimizer,
                     ModelFile::Open(PathOf(kOptimizerFileName), plan_->optimizer, &direct));
    for (const CheckpointSlice& slice : SlicesToWrite(request_, memory_, has_state_)) {
      // Between slices, so that a cancelled save ends soon.
      RETURN_IF_ERROR(CheckGoesOn(control_));
      const std::unique_ptr<ByteSource> bytes = state_.bytes(slice);
      uint32_t crc32 = kCrc32OfNothing;
      const auto write = [&](auto* files) {
        return files->WriteSlice(slice.tensor.second, slice.segment.parameter_begin_elements,
                                 slice.segment.dtype, bytes.get(), &crc32, control_.wrote);
      };
      RETURN_IF_ERROR(slice.array == StateArray::kParameter ? write(&model) : write(&optimizer));
      // In the order of SlicesToWrite, by which rank 0 finds whose they are.
      sums_.push_back(crc32);
    }
    if (leads_) {
      RETURN_IF_ERROR(WriteBuffers(&model));
      RETURN_IF_ERROR(WriteUpdateCounts(&optimizer));
    }
    // A file of its own: rank 0 knows neither its size nor its bytes.
    const std::string& own = request_.trainer_state();
    if (!own.empty()) {
      RETURN_IF_ERROR(WriteWholeFile(PathOf(TrainerFileName(memory_.rank.value())), own));
    }
    // Two sums more: the trainer's file, which only this rank knows.
    sums_.push_back(own.size());
    sums_.push_back(Crc32(own));
    // On disk before the ranks agree: publishing promises that.
    RETURN_IF_ERROR(model.Sync());
    RETURN_IF_ERROR(optimizer.Sync());
    return FaultPoint("save.written");
  }

  // `part`: what the tensors' keys begin with, whatever file they are in.
  absl::Status AddTensorFile(absl::string_view part, const std::string& name,
                             const SafetensorsHeader& header,
                             const std::map<TensorKey, std::vector<SummedSlice>>& slices,
                             Manifest* manifest) {
    ManifestFile& file = manifest->files[name];
    file.size_bytes = header.file_bytes;
    // The header is checked by itself, since tensors' sums do not cover it.
    file.crc32 = Crc32(EncodeHeader(header));
    for (const auto& [tensor, stored] : header.tensors) {
      const TensorKey key = {std::string(part), tensor};
      if (const auto whole = whole_sums_.find(key); whole != whole_sums_.end()) {
        file.tensors[tensor] = whole->second;
        continue;
      }
      const auto parts = slices.find(key);
      // From the slices' sums: nothing is read again.
      const absl::StatusOr<uint32_t> crc32 =
          CombineSums(parts == slices.end() ? std::vector<SummedSlice>() : parts->second,
                      stored.end_bytes - stored.begin_bytes);
      if (!crc32.ok()) return Annotate(crc32.status(), absl::StrCat("tensor '", tensor, "'"));
      file.tensors[tensor] = *crc32;
    }
    return absl::OkStatus();
  }

  absl::Status Publish(const std::vector<SliceSums>& sums) {
    Manifest manifest =
        ManifestFor(memory_.job_id, memory_.layout, memory_.config, state_.progress);
    // By this a later attempt of the same request finds that it was made (docs/adr/0053).
    manifest.request = control_.asked_for;
    const auto slices =
        SlicesByTensor([&](Rank rank) { return SavedSlicesOf(memory_, rank, has_state_); }, sums,
                       [](const CheckpointSlice& slice) { return SizeBytes(slice.segment.dtype); });
    for (const auto& [name, header] : plan_->model.headers)
      RETURN_IF_ERROR(AddTensorFile(kModelFileName, name, header, slices, &manifest));
    if (const std::string& index = plan_->model.index; !index.empty()) {
      manifest.files[kModelIndexName] = {static_cast<int64_t>(index.size()), Crc32(index), {}};
    }
    RETURN_IF_ERROR(AddTensorFile(kOptimizerFileName, std::string(kOptimizerFileName),
                                  plan_->optimizer, slices, &manifest));
    for (size_t rank = 0; rank < sums.size(); ++rank) {
      // As WriteOwn appended them.
      const size_t size_bytes = sums[rank][sums[rank].size() - 2];
      if (size_bytes == 0) continue;
      manifest.files[TrainerFileName(rank)] = {
          static_cast<int64_t>(size_bytes), static_cast<uint32_t>(sums[rank].back()), {}};
    }
    // The last moment to notice it before names change.
    RETURN_IF_ERROR(CheckStillMade(request_.spec().path(), made_));
    // Within the folder that has no name yet: a reader sees all of these names or none.
    RETURN_IF_ERROR(ModelFiles::Publish(folder_, plan_->model));
    RETURN_IF_ERROR(ModelFile::Publish(PathOf(kOptimizerFileName)));
    RETURN_IF_ERROR(
        CheckStillMade(request_.spec().path(), made_));  // Renames and syncs take their time.
    // The manifest comes right before the name: readers take a folder without one for unfinished.
    RETURN_IF_ERROR(PublishCheckpoint(
        request_.spec().path(), manifest,
        request_.spec().no_overwrite() ? Existing::kRefused : Existing::kReplaced));
    RetireOlder();
    return absl::OkStatus();
  }

  // The checkpoint is there; an old one that could not be removed must not make this save fail.
  void RetireOlder() {
    if (request_.spec().keep_newest() < 1) return;
    const absl::Status status = KeepNewest(request_.spec().path(), memory_.job_id,
                                           request_.spec().keep_newest(), &removed_);
    if (!status.ok())
      TESSERA_LOG(WARNING, "older checkpoints are not removed: {}", status.ToString());
  }

  const v1::SaveRequest& request_;
  const ExecutorMemory& memory_;
  const StateToSave& state_;
  Communicator& communicator_;
  const bool leads_;
  const std::string folder_;
  const std::vector<bool> has_state_;  // By parameter of the job.
  const SaveControl control_;
  std::optional<FolderIdentity> made_;  // Rank 0's.
  std::optional<CheckpointPlan> plan_;
  SliceSums sums_;                            // Of this rank's slices, then of its trainer's bytes.
  std::map<TensorKey, uint32_t> whole_sums_;  // Of tensors that rank 0 wrote whole.
  std::vector<std::string> removed_;          // Older checkpoints.
};

}  // namespace

StateToSave InMemory(const SavedState& state) {
  return {state.progress, [&state](const CheckpointSlice& slice) {
            const ConstValues values = state.values(slice.array, slice.segment);
            return std::make_unique<MemoryBytes>(
                absl::string_view(static_cast<const char*>(values.data()), values.size_bytes()));
          }};
}

absl::Status CheckGoesOn(const SaveControl& control) {
  if (control.stopped != nullptr && control.stopped->load())
    return absl::AbortedError("the epoch ended");
  if (control.cancelled != nullptr && control.cancelled->load())
    return absl::CancelledError("the save was cancelled");
  return absl::OkStatus();
}

std::vector<CheckpointSlice> SlicesToWrite(const v1::SaveRequest& request,
                                           const ExecutorMemory& memory,
                                           const std::vector<bool>& has_state) {
  return request.spec().with_replicas() ? SlicesOf(memory, memory.rank, has_state)
                                        : SavedSlicesOf(memory, memory.rank, has_state);
}

std::vector<bool> HasStates(const ModelLayout& layout, const TrainingProgress& progress) {
  std::vector<bool> has(progress.update_counts.size());
  ForEachParameter(layout, [&](const PlacedParameter& parameter, int number) {
    has[number] = HasState(parameter.spec, progress.update_counts[number]);
  });
  return has;
}

absl::Status SaveCheckpoint(const v1::SaveRequest& request, const ExecutorMemory& memory,
                            const StateToSave& state, Communicator* communicator,
                            const SaveControl& control, v1::SaveReply* reply) {
  CheckpointSave save(request, memory, state, communicator, control);
  const absl::Status status = save.Run();
  // On every rank, though only rank 0 made anything.
  if (!status.ok()) save.Undo();
  reply->set_written_bytes(save.written_bytes());
  for (const std::string& path : save.TakeRemoved()) reply->add_removed(PrintableUtf8(path));
  return status;
}

}  // namespace tessera
