#include "worker/executor/load/checkpoint_load.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/checked_file.h"
#include "checkpoint/safetensors/checked_files.h"
#include "checkpoint/safetensors/crc32.h"
#include "job/job_codec.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/agreement.h"
#include "worker/executor/load/checkpoint_load_plan.h"
#include "worker/executor/load/load_agreement.h"
#include "worker/executor/load/load_plan.h"
#include "worker/executor/load/model_load.h"
#include "worker/executor/save/checkpoint_plan.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

template <typename To>
void WidenOrRound(ConstValues from, absl::Span<To> into) {
  const auto cast = [&](const auto* values) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = static_cast<To>(values[i]);
  };
  if (from.dtype() == DType::kFp64) {
    cast(from.as<double>().data());
  } else {
    cast(from.as<float>().data());
  }
}

class CheckpointLoad {
 public:
  CheckpointLoad(const v1::LoadRequest& request, const ExecutorMemory& memory, LoadedState* state,
                 Communicator* communicator, const std::atomic<bool>* stopped)
      : request_(request),
        memory_(memory),
        state_(*state),
        communicator_(*communicator),
        stopped_(*stopped) {}

  absl::StatusOr<v1::LoadReply> Run() {
    // All ranks have to reach each collective, so a rank's own error is agreed on before it ends
    // the load.
    RETURN_IF_ERROR(AgreeOn("load", Open(), &communicator_));
    // Before reading: ranks that see different folders would mix two checkpoints.
    RETURN_IF_ERROR(CompareManifests());
    v1::LoadReply reply;
    absl::Status own = ReadOwn();
    if (own.ok()) own = ReadForTrainer(&reply);
    RETURN_IF_ERROR(AgreeOn("load", own, &communicator_));
    // Sums of slices: no rank reads a whole tensor, and together they check all of it.
    ASSIGN_OR_RETURN(const std::vector<SliceSums> sums, GatherSums(sums_, &communicator_));
    // Each rank checks all sums. What was published by now is taken back if they are wrong.
    RETURN_IF_ERROR(AgreeOn("load", CheckSums(sums), &communicator_));
    return reply;
  }

 private:
  bool with_optimizer() const { return !request_.model_only(); }

  absl::Status CheckRequest() const {
    if (!request_.optimizer_only()) return absl::OkStatus();
    if (request_.model_only())
      return absl::InvalidArgumentError("a load of the model only and of the optimizer only");
    if (request_.buffers_size() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a load of the optimizer only gives no buffers, as '",
                       absl::Utf8SafeCEscape(request_.buffers(0).name()), "'"));
    }
    if (!state_.first) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "a load of the optimizer only: the job has no values yet that it could keep");
  }

  absl::Status Open() {
    RETURN_IF_ERROR(CheckRequest());
    // First: it has sizes and sums for all other files, which are believed nothing without it.
    ASSIGN_OR_RETURN(manifest_, ReadManifest(request_.path()));
    ASSIGN_OR_RETURN(CheckedFiles model, CheckedFiles::OpenModel(request_.path(), manifest_));
    model_.emplace(std::move(model));
    if (with_optimizer()) RETURN_IF_ERROR(OpenOptimizer());
    ASSIGN_OR_RETURN(const std::vector<NamedTensorInfo> buffers, InfosOf(request_.buffers()));
    absl::StatusOr<CheckpointLoadPlan> plan = PlanCheckpointLoad(
        model_->header(), with_optimizer() ? &optimizer_->header() : nullptr, buffers,
        memory_.layout, memory_.config, RulesOf(request_, state_.first));
    if (!plan.ok()) return Annotate(plan.status(), request_.path());
    // A job's first values: what is not loaded would train from zeroes.
    if (state_.first) RETURN_IF_ERROR(CheckGivesAll(plan->model));
    plan_ = *std::move(plan);
    return absl::OkStatus();
  }

  absl::Status OpenOptimizer() {
    const std::string own = OptimizerName(memory_.config.optimizer);
    if (manifest_.optimizer != own) {
      return absl::InvalidArgumentError(
          absl::StrCat(request_.path(), " has the state of optimizer '", manifest_.optimizer,
                       "', the job's is '", own, "'"));
    }
    ASSIGN_OR_RETURN(
        CheckedFiles optimizer,
        CheckedFiles::Open(request_.path(), {std::string(kOptimizerFileName)}, manifest_));
    optimizer_.emplace(std::move(optimizer));
    return HyperParametersOf(manifest_).status();
  }

  // Whether all ranks read the same checkpoint.
  absl::Status CompareManifests() {
    // Of what the manifest says, which has checksums of all files.
    const uint64_t own = Crc32(EncodeManifest(manifest_));
    std::vector<uint64_t> all(communicator_.size());
    RETURN_IF_ERROR(communicator_.AllGather(&own, all.data(), sizeof(own)));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return AsAgreed(absl::FailedPreconditionError(absl::StrCat(
          "load: ranks 0 and ", rank, " see different checkpoints at ", request_.path())));
    }
    return absl::OkStatus();
  }

  // Which tensors have moments is in the file, so all ranks know the slices of all ranks.
  std::vector<bool> HasStates() const {
    std::vector<bool> has(plan_.states.size());
    for (size_t i = 0; i < has.size(); ++i) has[i] = !plan_.states[i].empty();
    return has;
  }

  // The tensor that the file has for a slice; "" where it has none.
  std::string StoredName(const CheckpointSlice& slice) const {
    if (slice.array == StateArray::kParameter) {
      if (request_.optimizer_only()) return "";
      return plan_.model.tensors[slice.segment.unit][slice.segment.parameter];
    }
    return MomentTensor(plan_.states[slice.segment.job_parameter], memory_.config.optimizer,
                        slice.array);
  }
  const CheckedFiles& FileOf(const CheckpointSlice& slice) const {
    return slice.array == StateArray::kParameter ? *model_ : *optimizer_;
  }

  // Of the same elements; they stay until the next call.
  ConstValues InDTypeOf(const ShardSegment& segment, ConstValues values) {
    // Kept between pieces, which all have one size but the last.
    converted_.resize(values.size() * SizeBytes(segment.dtype));
    const Values into(converted_.data(), static_cast<int64_t>(values.size()), segment.dtype);
    if (segment.dtype == DType::kFp64) {
      WidenOrRound(values, into.as<double>());
    } else {
      WidenOrRound(values, into.as<float>());
    }
    return into;
  }

  absl::Status ReadSlice(const CheckpointSlice& slice, const std::string& tensor) {
    const CheckedFiles& file = FileOf(slice);
    const ShardSegment& segment = slice.segment;
    ASSIGN_OR_RETURN(const StoredTensor* stored, file.Find(tensor));
    const std::optional<DType> dtype = LayoutDType(stored->dtype);
    if (dtype != DType::kFp32 && dtype != DType::kFp64) {
      return absl::InvalidArgumentError(
          absl::StrCat("a checkpoint in ", Name(stored->dtype), ", not in full precision"));
    }
    const int64_t element_bytes = SizeBytes(*dtype);
    uint32_t crc32 = kCrc32OfNothing;
    int64_t begin = 0;
    const auto set = [&](absl::Span<const char> piece) {
      const int64_t count = static_cast<int64_t>(piece.size()) / element_bytes;
      const ConstValues values(piece.data(), count, *dtype);
      if (*dtype == segment.dtype) {
        state_.writer->Set(slice.array, segment, begin, values);
      } else {
        state_.writer->Set(slice.array, segment, begin, InDTypeOf(segment, values));
      }
      begin += count;
    };
    // Read once: written to its place and summed in one pass (docs/adr/0054).
    RETURN_IF_ERROR(file.ReadInPieces(tensor, segment.parameter_begin_elements * element_bytes,
                                      segment.numel * element_bytes, room_.get(), set, &crc32));
    sums_.push_back(crc32);
    return absl::OkStatus();
  }

  absl::Status ReadOwn() {
    const std::vector<bool> has_states = HasStates();
    for (const CheckpointSlice& slice : SlicesOf(memory_, memory_.rank, has_states)) {
      RETURN_IF_ERROR(FaultPoint("load.read"));
      if (stopped_.load()) return absl::AbortedError("the epoch ended");
      const std::string tensor = StoredName(slice);
      if (tensor.empty()) {
        state_.writer->Keep(slice.array, slice.segment);
        // A place among the sums, so that slices and sums keep the same order.
        sums_.push_back(0);
      } else {
        RETURN_IF_ERROR(ReadSlice(slice, tensor));
      }
    }
    if (!with_optimizer()) return absl::OkStatus();
    // Parameters without state in the checkpoint start without, except for those left out.
    for (const ShardSegment& segment :
         SegmentsOf(memory_.layout, memory_.config, memory_.plan, memory_.rank)) {
      if (has_states[segment.job_parameter]) continue;
      for (const StateArray moment : state_.moments) {
        if (plan_.left_out[segment.job_parameter]) {
          state_.writer->Keep(moment, segment);
        } else {
          state_.writer->Clear(moment, segment);
        }
      }
    }
    return ReadProgress();
  }

  absl::Status ReadProgress() {
    TrainingProgress progress;
    // Without some parameters it is not the model at that step, so the count goes on from the
    // present one.
    progress.step = plan_.model.left_out.empty() ? manifest_.step : state_.before.step;
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const std::string& name = plan_.states[i];
      int64_t& count = progress.update_counts.emplace_back(0);
      if (plan_.left_out[i]) count = state_.before.update_counts[i];
      if (name.empty()) continue;
      const std::string tensor = StepTensor(name);
      ASSIGN_OR_RETURN(const StoredTensor* stored, optimizer_->Find(tensor));
      RETURN_IF_ERROR(optimizer_->Verify(tensor));
      uint32_t crc32 = kCrc32OfNothing;
      double updates = 0;
      if (stored->dtype == DType::kFp64) {
        RETURN_IF_ERROR(optimizer_->Read(tensor, 0, sizeof(updates), &updates, &crc32));
      } else {
        float single = 0;
        RETURN_IF_ERROR(optimizer_->Read(tensor, 0, sizeof(single), &single, &crc32));
        updates = single;
      }
      // Not a number is refused too.
      // The page counts updates in 32 bits.
      if (!(updates >= 0 && updates <= 4e9)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", tensor, "' says ", updates, " updates"));
      }
      count = static_cast<int64_t>(updates);
    }
    // Last: without it moments count as not loaded, and an error above leaves it so.
    state_.progress = std::move(progress);
    return absl::OkStatus();
  }

  absl::Status ReadForTrainer(v1::LoadReply* reply) {
    for (const std::string& name : plan_.model.missing) reply->add_missing(name);
    for (const std::string& name : plan_.model.unexpected) reply->add_unexpected(name);
    const BufferNumbers numbers = NumbersOf(memory_.layout);
    for (const auto& [buffer, tensor] : plan_.model.buffers) {
      // Small, and needed by this rank: checked here as a whole.
      RETURN_IF_ERROR(model_->Verify(tensor));
      ASSIGN_OR_RETURN(const StoredTensor* stored, model_->Find(tensor));
      v1::NamedTensor* to = reply->add_buffers();
      to->set_name(buffer.name);
      to->set_dtype(std::string(Name(stored->dtype)));
      for (const int64_t dim : stored->shape) to->add_shape(dim);
      std::string* values = to->mutable_values();
      values->resize(stored->end_bytes - stored->begin_bytes);
      uint32_t crc32 = kCrc32OfNothing;
      RETURN_IF_ERROR(model_->Read(tensor, 0, values->size(), values->data(), &crc32));
      KeepInState(*to, memory_.layout, numbers, &state_);
    }
    reply->set_step(manifest_.step);
    reply->set_saved_world_size(manifest_.world_size);
    ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups, HyperParametersOf(manifest_));
    for (size_t i = 0; i < groups.size(); ++i) {
      v1::ParamGroup* group = reply->add_groups();
      for (const std::string& name : manifest_.groups[i].parameters)
        group->add_parameter_names(name);
      EncodeHyperParameters(groups[i], group);
    }
    // A rank that the saved job did not have gets rank 0's: schedulers are the same on all ranks.
    const int rank = memory_.rank.value();
    const std::string own = TrainerFileName(rank < manifest_.world_size ? rank : 0);
    if (manifest_.files.count(own) == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(*reply->mutable_trainer_state(),
                     ReadCheckedBytes(request_.path(), own, manifest_));
    return absl::OkStatus();
  }

  absl::Status CheckSums(const std::vector<SliceSums>& sums) {
    const std::vector<bool> has_states = HasStates();
    const auto of_rank = [&](Rank rank) {
      std::vector<CheckpointSlice> slices = SlicesOf(memory_, rank, has_states);
      for (CheckpointSlice& slice : slices) slice.tensor.second = StoredName(slice);
      return slices;
    };
    const auto element_bytes = [&](const CheckpointSlice& slice) {
      const auto stored = FileOf(slice).Find(slice.tensor.second);
      return stored.ok() ? SizeBits((*stored)->dtype) / 8 : 0;
    };
    for (const auto& [key, slices] : SlicesByTensor(of_rank, sums, element_bytes)) {
      const auto& [file_name, tensor] = key;
      // Kept as it was: nothing was read, so nothing is checked.
      if (tensor.empty()) continue;
      const CheckedFiles& file = file_name == kModelFileName ? *model_ : *optimizer_;
      ASSIGN_OR_RETURN(const StoredTensor* stored, file.Find(tensor));
      // Slices of all ranks in the order of the tensor's bytes. A gap or an overlap is an error
      // too.
      const absl::StatusOr<uint32_t> crc32 =
          CombineSums(slices, stored->end_bytes - stored->begin_bytes);
      if (!crc32.ok()) return Annotate(crc32.status(), absl::StrCat("tensor '", tensor, "'"));
      RETURN_IF_ERROR(file.Check(tensor, *crc32));
    }
    return absl::OkStatus();
  }

  const v1::LoadRequest& request_;
  const ExecutorMemory& memory_;
  LoadedState& state_;
  Communicator& communicator_;
  const std::atomic<bool>& stopped_;
  Manifest manifest_;
  std::optional<CheckedFiles> model_, optimizer_;
  CheckpointLoadPlan plan_;
  const std::unique_ptr<ReadableFile::PieceRoom> room_{new ReadableFile::PieceRoom};
  std::vector<char> converted_;
  SliceSums sums_;  // Of this rank's slices.
};

}  // namespace

absl::StatusOr<v1::LoadReply> LoadCheckpoint(const v1::LoadRequest& request,
                                             const ExecutorMemory& memory, LoadedState* state,
                                             Communicator* communicator,
                                             const std::atomic<bool>* stopped) {
  return CheckpointLoad(request, memory, state, communicator, stopped).Run();
}

}  // namespace tessera
