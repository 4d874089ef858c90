#include "worker/executor/checkpoint_save.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/crc32.h"
#include "checkpoint/file_io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_file.h"
#include "job/job_codec.h"
#include "worker/executor/agreement.h"
#include "worker/executor/checkpoint_plan.h"
#include "worker/executor/checkpoint_slices.h"

namespace tessera {
namespace {

// The buffers of rank 0, without their values, on all ranks.
absl::Status ShareBuffers(const v1::SaveRequest& request, Communicator* communicator,
                          v1::SaveRequest* shared) {
  v1::SaveRequest specs;
  for (const v1::NamedTensor& buffer : request.buffers()) {
    v1::NamedTensor* spec = specs.add_buffers();
    *spec = buffer;
    spec->clear_values();
  }
  specs.set_path(request.path());
  std::string bytes = specs.SerializeAsString();
  uint64_t size = bytes.size();
  RETURN_IF_ERROR(communicator->Broadcast(&size, sizeof(size), /*root=*/0));
  bytes.resize(size);
  RETURN_IF_ERROR(communicator->Broadcast(bytes.data(), size, /*root=*/0));
  if (!shared->ParseFromString(bytes)) return absl::InternalError("rank 0's buffers are malformed");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorSpec>> SpecsOf(const v1::SaveRequest& shared) {
  std::vector<TensorSpec> specs;
  for (const v1::NamedTensor& buffer : shared.buffers()) {
    TensorSpec& spec = specs.emplace_back();
    spec.name = buffer.name();
    spec.shape.assign(buffer.shape().begin(), buffer.shape().end());
    ASSIGN_OR_RETURN(spec.dtype, DecodeDType(buffer.dtype()));
  }
  return specs;
}

class CheckpointSave {
 public:
  CheckpointSave(const v1::SaveRequest& request, const ExecutorMemory& memory,
                 const SavedState& state, Communicator* communicator,
                 const std::atomic<bool>* stopped, std::atomic<int64_t>* written_bytes)
      : request_(request),
        memory_(memory),
        state_(state),
        communicator_(*communicator),
        leads_(communicator->rank() == 0),
        folder_(PartialFolder(request.path())),
        has_state_(HasStates(memory.layout, state.progress)),
        stopped_(*stopped),
        written_bytes_(written_bytes) {}

  absl::Status Run(absl::Status* outcome) {
    v1::SaveRequest shared;
    RETURN_IF_ERROR(ShareBuffers(request_, &communicator_, &shared));
    *outcome = Plan(shared);
    if (outcome->ok() && leads_) *outcome = CreateFiles();
    if (outcome->ok() && leads_) *outcome = FaultPoint("save.created");
    RETURN_IF_ERROR(AgreeOn("save", outcome, &communicator_));
    if (!outcome->ok()) return absl::OkStatus();
    *outcome = WriteOwn();
    RETURN_IF_ERROR(AgreeOn("save", outcome, &communicator_));
    if (!outcome->ok()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<SliceSums> sums, GatherSums(sums_, &communicator_));
    if (leads_) *outcome = Publish(sums);
    return AgreeOn("save", outcome, &communicator_);
  }

  int64_t written_bytes() const {
    return plan_.has_value() ? plan_->model.file_bytes + plan_->optimizer.file_bytes : 0;
  }

 private:
  std::string PathOf(absl::string_view file) const { return absl::StrCat(folder_, "/", file); }

  absl::Status Plan(const v1::SaveRequest& shared) {
    if (shared.path() != request_.path()) {
      return absl::InvalidArgumentError(
          absl::StrCat("this rank saves to ", request_.path(), ", rank 0 to ", shared.path()));
    }
    ASSIGN_OR_RETURN(const std::vector<TensorSpec> buffers, SpecsOf(shared));
    ASSIGN_OR_RETURN(plan_,
                     PlanCheckpoint(memory_.layout, memory_.config, state_.progress, buffers));
    return absl::OkStatus();
  }

  absl::Status CreateFiles() {
    RETURN_IF_ERROR(BeginCheckpoint(request_.path()));
    RETURN_IF_ERROR(ModelFile::Create(PathOf(kModelFileName), plan_->model));
    return ModelFile::Create(PathOf(kOptimizerFileName), plan_->optimizer);
  }

  // Rank 0 alone has these.
  absl::Status WriteBuffers(ModelFile* model) {
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
    ASSIGN_OR_RETURN(ModelFile model, ModelFile::Open(PathOf(kModelFileName), plan_->model));
    ASSIGN_OR_RETURN(ModelFile optimizer,
                     ModelFile::Open(PathOf(kOptimizerFileName), plan_->optimizer));
    for (const CheckpointSlice& slice : SavedSlicesOf(memory_, memory_.rank, has_state_)) {
      if (stopped_.load()) return absl::AbortedError("the epoch ended");
      const ConstValues values = state_.values(slice.array, slice.segment);
      ModelFile& file = slice.array == StateArray::kParameter ? model : optimizer;
      RETURN_IF_ERROR(
          file.WriteSlice(slice.tensor.second, slice.segment.parameter_begin_elements, values));
      sums_.push_back(Crc32(values.data(), values.size_bytes()));
      if (written_bytes_ != nullptr) written_bytes_->fetch_add(values.size_bytes());
    }
    if (leads_) {
      RETURN_IF_ERROR(WriteBuffers(&model));
      RETURN_IF_ERROR(WriteUpdateCounts(&optimizer));
    }
    const std::string& own = request_.trainer_state();
    if (!own.empty()) {
      RETURN_IF_ERROR(WriteWholeFile(PathOf(TrainerFileName(memory_.rank.value())), own));
    }
    sums_.push_back(own.size());
    sums_.push_back(Crc32(own));
    RETURN_IF_ERROR(model.Sync());
    RETURN_IF_ERROR(optimizer.Sync());
    return FaultPoint("save.written");
  }

  absl::Status AddTensorFile(absl::string_view name, const SafetensorsHeader& header,
                             const std::map<TensorKey, std::vector<SummedSlice>>& slices,
                             Manifest* manifest) {
    ManifestFile& file = manifest->files[std::string(name)];
    file.size_bytes = header.file_bytes;
    file.crc32 = Crc32(EncodeHeader(header));
    for (const auto& [tensor, stored] : header.tensors) {
      const TensorKey key = {std::string(name), tensor};
      if (const auto whole = whole_sums_.find(key); whole != whole_sums_.end()) {
        file.tensors[tensor] = whole->second;
        continue;
      }
      const auto parts = slices.find(key);
      const absl::StatusOr<uint32_t> crc32 =
          CombineSums(parts == slices.end() ? std::vector<SummedSlice>() : parts->second,
                      stored.end_bytes - stored.begin_bytes);
      if (!crc32.ok()) return Annotate(crc32.status(), absl::StrCat("tensor '", tensor, "'"));
      file.tensors[tensor] = *crc32;
    }
    return absl::OkStatus();
  }

  absl::Status Publish(const std::vector<SliceSums>& sums) {
    Manifest manifest;
    manifest.job_id = memory_.job_id;
    manifest.step = state_.progress.step;
    manifest.world_size = memory_.config.world_size;
    manifest.optimizer = OptimizerName(memory_.config.optimizer);
    manifest.groups = GroupsFor(memory_.layout, memory_.config, state_.progress);
    const auto slices =
        SlicesByTensor([&](Rank rank) { return SavedSlicesOf(memory_, rank, has_state_); }, sums,
                       [](const CheckpointSlice& slice) { return SizeBytes(slice.segment.dtype); });
    RETURN_IF_ERROR(AddTensorFile(kModelFileName, plan_->model, slices, &manifest));
    RETURN_IF_ERROR(AddTensorFile(kOptimizerFileName, plan_->optimizer, slices, &manifest));
    for (size_t rank = 0; rank < sums.size(); ++rank) {
      const size_t size_bytes = sums[rank][sums[rank].size() - 2];
      if (size_bytes == 0) continue;
      manifest.files[TrainerFileName(rank)] = {
          static_cast<int64_t>(size_bytes), static_cast<uint32_t>(sums[rank].back()), {}};
    }
    RETURN_IF_ERROR(ModelFile::Publish(PathOf(kModelFileName)));
    RETURN_IF_ERROR(ModelFile::Publish(PathOf(kOptimizerFileName)));
    RETURN_IF_ERROR(PublishCheckpoint(request_.path(), manifest));
    RetireOlder();
    return absl::OkStatus();
  }

  // The checkpoint is there; one that is too many is no reason to say that it is not.
  void RetireOlder() {
    if (request_.keep_newest() < 1) return;
    const absl::Status status = KeepNewest(request_.path(), memory_.job_id, request_.keep_newest());
    if (!status.ok())
      TESSERA_LOG(WARNING, "older checkpoints are not removed: {}", status.ToString());
  }

  const v1::SaveRequest& request_;
  const ExecutorMemory& memory_;
  const SavedState& state_;
  Communicator& communicator_;
  const bool leads_;
  const std::string folder_;
  const std::vector<bool> has_state_;  // By parameter of the job.
  const std::atomic<bool>& stopped_;
  std::atomic<int64_t>* const written_bytes_;  // May be null.
  std::optional<CheckpointPlan> plan_;
  SliceSums sums_;                            // Of this rank's slices, then of its trainer's bytes.
  std::map<TensorKey, uint32_t> whole_sums_;  // Of tensors that rank 0 wrote whole.
};

}  // namespace

std::vector<bool> HasStates(const ModelLayout& layout, const TrainingProgress& progress) {
  std::vector<bool> has(progress.update_counts.size());
  ForEachParameter(layout, [&](const PlacedParameter& parameter, int number) {
    has[number] = HasState(parameter.spec, progress.update_counts[number]);
  });
  return has;
}

absl::Status SaveCheckpoint(const v1::SaveRequest& request, const ExecutorMemory& memory,
                            const SavedState& state, Communicator* communicator,
                            const std::atomic<bool>* stopped, v1::SaveReply* reply,
                            absl::Status* outcome, std::atomic<int64_t>* written_bytes) {
  CheckpointSave save(request, memory, state, communicator, stopped, written_bytes);
  const absl::Status status = save.Run(outcome);
  if (communicator->rank() == 0 && (!status.ok() || !outcome->ok()))
    DiscardCheckpoint(request.path());
  reply->set_written_bytes(save.written_bytes());
  return status;
}

}  // namespace tessera
