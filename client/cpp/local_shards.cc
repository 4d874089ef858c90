#include "client/cpp/local_shards.h"

#include <algorithm>

#include "base/ids.h"
#include "base/status_macros.h"

namespace tessera {

LocalShards::LocalShards(Session* session) : session_(session) {
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const UnitLayout& layout = session->layout().units[unit];
    const ElementRange slice = layout.shards.RangeOf(Rank(session->rank()));
    values_.emplace_back(slice.size());
    gradients_.emplace_back(slice.size());
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

absl::Span<float> LocalShards::values(size_t part) {
  return absl::MakeSpan(values_[parts_[part].unit].data() + offsets_[part], parts_[part].numel);
}

absl::Span<float> LocalShards::gradient(size_t part) {
  return absl::MakeSpan(gradients_[parts_[part].unit].data() + offsets_[part], parts_[part].numel);
}

absl::Span<float> LocalShards::Slice(int unit) const {
  const ElementRange slice = session_->layout().units[unit].shards.RangeOf(Rank(session_->rank()));
  return absl::MakeSpan(reinterpret_cast<float*>(session_->Slot(unit)) + slice.begin, slice.size());
}

absl::Status LocalShards::Read(OpKind kind, int unit, std::vector<float>* into) {
  RETURN_IF_ERROR(session_->ClaimSlot(unit));
  RETURN_IF_ERROR(session_->SubmitSlot(kind, unit));
  RETURN_IF_ERROR(session_->AwaitSlot(unit));
  const absl::Span<float> slice = Slice(unit);
  std::copy(slice.begin(), slice.end(), into->begin());
  return absl::OkStatus();
}

absl::Status LocalShards::ReadValues() {
  const int64_t version = session_->version();
  for (int unit = 0; unit < session_->num_units(); ++unit)
    RETURN_IF_ERROR(Read(OpKind::kReadShard, unit, &values_[unit]));
  values_of_ = version;
  return absl::OkStatus();
}

absl::Status LocalShards::ReadGradients(double scale) {
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    std::vector<float>& gradient = gradients_[unit];
    if (!session_->reduced(unit)) {
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      continue;
    }
    RETURN_IF_ERROR(Read(OpKind::kReadGradientShard, unit, &gradient));
    if (scale == 1) continue;
    for (float& element : gradient) element *= static_cast<float>(scale);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int parameter =
        session_->plan_.units()[parts_[i].unit].first_parameter + parts_[i].parameter;
    has_gradient_[i] = session_->touched()[parameter] != std::byte{0};
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> LocalShards::Begin(const StepOptions& options) {
  begun_epoch_ = 0;
  RETURN_IF_ERROR(session_->CheckStepOptions(options));
  RETURN_IF_ERROR(session_->ReduceRest());
  RETURN_IF_ERROR(session_->Submit(OpKind::kTally, -1, options));
  RETURN_IF_ERROR(session_->AwaitResult(OpKind::kTally));
  const OpResult& result = session_->page()->result;
  if (result.status_code != 0) session_->ForgetGradients();
  if (result.non_finite != 0 && options.skip_non_finite) {
    session_->agreed_error_ = false;
    return StepResult{session_->next_step() - 1, 0, /*skipped=*/true};
  }
  RETURN_IF_ERROR(session_->ResultStatus());
  const StepResult norm = {session_->next_step() - 1, result.gradient_norm};
  RETURN_IF_ERROR(ReadGradients(result.gradient_scale));
  if (values_of_ != session_->version()) RETURN_IF_ERROR(ReadValues());
  values_of_ = -1;
  begun_epoch_ = session_->epoch_;
  begun_at_ = session_->version();
  return norm;
}

absl::Status LocalShards::Commit() {
  if (begun_epoch_ != session_->epoch_ || begun_at_ != session_->version())
    return absl::FailedPreconditionError("local shards: a commit without its begin");
  begun_epoch_ = 0;
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    if (session_->windows_[unit] != Session::Window::kClosed)
      RETURN_IF_ERROR(session_->Reshard(unit));
  }
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    RETURN_IF_ERROR(session_->ClaimSlot(unit));
    std::copy(values_[unit].begin(), values_[unit].end(), Slice(unit).begin());
    RETURN_IF_ERROR(session_->SubmitSlot(OpKind::kWrite, unit));
  }
  RETURN_IF_ERROR(session_->Submit(OpKind::kFinishTrainersStep, -1));
  RETURN_IF_ERROR(session_->AwaitResult(OpKind::kFinishTrainersStep));
  session_->ForgetGradients();
  RETURN_IF_ERROR(session_->ResultStatus());
  values_of_ = session_->version();
  return absl::OkStatus();
}

}  // namespace tessera
