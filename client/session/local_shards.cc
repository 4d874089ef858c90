#include "tessera/local_shards.h"

#include <algorithm>
#include <cstring>

#include "base/ids.h"
#include "base/status_macros.h"
#include "client/session/session_state.h"
#include "client/session/state_access.h"

namespace tessera {
namespace {

void Multiply(Values values, double scale) {
  if (values.dtype() == DType::kFp64) {
    for (double& value : values.as<double>()) value *= scale;
  } else {
    for (float& value : values.as<float>()) value *= static_cast<float>(scale);
  }
}

}  // namespace

LocalShards::LocalShards(Session* session) : session_(session) {
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const UnitLayout& layout = session->layout().units[unit];
    const ElementRange slice = layout.shards.RangeOf(Rank(session->rank()));
    values_.emplace_back(slice.size() * SizeBytes(session->full_dtype(unit)));
    gradients_.emplace_back(values_.back().size());
    const std::vector<PlacedParameter>& parameters = layout.flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t offset = parameters[p].offset_elements;
      const ElementRange part = Intersect({offset, offset + parameters[p].numel}, slice);
      const bool empty = part.empty();
      parts_.push_back(
          {unit, static_cast<int>(p), empty ? 0 : part.begin - offset, empty ? 0 : part.size()});
      offsets_.push_back(empty ? 0 : part.begin - slice.begin);
    }
  }
  has_gradient_.resize(parts_.size(), false);
}

absl::StatusOr<std::unique_ptr<LocalShards>> LocalShards::Open(Session* session) {
  if (!session->initialized())
    return absl::FailedPreconditionError("local shards: the job has no initial values yet");
  std::unique_ptr<LocalShards> shards(new LocalShards(session));
  RETURN_IF_ERROR(shards->ReadValues());
  return shards;
}

const TensorSpec& LocalShards::spec(size_t part) const {
  return session_->layout().units[parts_[part].unit].flat.parameters()[parts_[part].parameter].spec;
}

Values LocalShards::PartOf(std::vector<Bytes>* shards, size_t part) const {
  const int unit = parts_[part].unit;
  const DType dtype = session_->full_dtype(unit);
  return {(*shards)[unit].data() + offsets_[part] * SizeBytes(dtype), parts_[part].numel, dtype};
}

Values LocalShards::values(size_t part) { return PartOf(&values_, part); }

Values LocalShards::gradient(size_t part) { return PartOf(&gradients_, part); }

absl::Status LocalShards::Read(OpKind kind, int unit, Bytes* into) {
  GradientSlots& slots = session_->state().slots;
  RETURN_IF_ERROR(slots.Read(OpOf(kind, unit)));
  if (!into->empty()) memcpy(into->data(), slots.Shard(unit).data(), into->size());
  return absl::OkStatus();
}

absl::Status LocalShards::ReadValues() {
  // Noted before reading: values that are read are at least of this version.
  const int64_t version = session_->state().client.version();
  for (int unit = 0; unit < session_->num_units(); ++unit)
    RETURN_IF_ERROR(Read(OpKind::kReadShard, unit, &values_[unit]));
  values_of_ = version;
  return absl::OkStatus();
}

absl::Status LocalShards::ReadGradients(double scale) {
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    Bytes& gradient = gradients_[unit];
    if (!session_->reduced(unit)) {
      std::fill(gradient.begin(), gradient.end(), std::byte{0});
      continue;
    }
    RETURN_IF_ERROR(Read(OpKind::kReadGradientShard, unit, &gradient));
    if (scale == 1) continue;
    const DType dtype = session_->full_dtype(unit);
    Multiply(Values(gradient.data(), gradient.size() / SizeBytes(dtype), dtype), scale);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    has_gradient_[i] = session_->state().slots.touched(parts_[i].unit, parts_[i].parameter);
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> LocalShards::Begin(const StepOptions& options) {
  SessionState& state = session_->state();
  begun_epoch_ = 0;
  RETURN_IF_ERROR(state.steps.CheckOptions(options));
  // The tally tells the scale of clipping before the trainers' optimizers run.
  RETURN_IF_ERROR(state.steps.Vote(OpKind::kTally, options));
  const OpResult& result = state.client.page()->result;
  if (result.status_code != 0) state.slots.Forget();
  if (result.non_finite != 0 && options.skip_non_finite) return state.steps.Skip();
  RETURN_IF_ERROR(state.client.ResultStatus());
  const StepResult norm = {session_->next_step() - 1, result.gradient_norm};
  RETURN_IF_ERROR(ReadGradients(result.gradient_scale));
  // A write, a put or a load came since.
  if (values_of_ != state.client.version()) RETURN_IF_ERROR(ReadValues());
  // From here on the optimizer changes them, so they are of no version until Commit().
  values_of_ = -1;
  begun_epoch_ = state.client.epoch();
  begun_at_ = state.client.version();
  return norm;
}

absl::Status LocalShards::Commit() {
  SessionState& state = session_->state();
  // An epoch that ended took the tally with it.
  if (begun_epoch_ != state.client.epoch() || begun_at_ != state.client.version())
    return absl::FailedPreconditionError("local shards: a commit without its begin");
  begun_epoch_ = 0;
  // Windows show parameters that the commit replaces.
  RETURN_IF_ERROR(state.windows.CloseAll());
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    RETURN_IF_ERROR(state.slots.Claim(unit));
    if (!values_[unit].empty())
      memcpy(state.slots.Shard(unit).data(), values_[unit].data(), values_[unit].size());
    RETURN_IF_ERROR(state.slots.Submit(OpOf(OpKind::kWrite, unit)));
  }
  RETURN_IF_ERROR(state.client.Submit(OpOf(OpKind::kFinishTrainersStep)));
  RETURN_IF_ERROR(state.client.AwaitResult(OpKind::kFinishTrainersStep));
  state.slots.Forget();
  RETURN_IF_ERROR(state.client.ResultStatus());
  // The next Begin reads again if the version is not this one.
  values_of_ = begun_at_ + 1;  // A put may have set values after it.
  StateAccess(session_).TakeSaveRequest();
  return absl::OkStatus();
}

}  // namespace tessera
