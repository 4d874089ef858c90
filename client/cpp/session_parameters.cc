// Session: whole parameters, initial ones too, which travel through the rank's gradient slots.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/session.h"

namespace tessera {
namespace {

void Zero(Values values) { memset(values.data(), 0, values.size_bytes()); }

}  // namespace

int64_t Session::num_writes() const { return page()->writes.load(std::memory_order_acquire); }

absl::Status Session::ClaimSlot(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (gradients_[unit].begun) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", UnitName(unit), "' has a gradient in its slot that is not reduced yet"));
  }
  RETURN_IF_ERROR(AwaitSlot(unit));
  slot_user_[plan_.units()[unit].gradient_slot] = unit;
  return absl::OkStatus();
}

absl::Status Session::StageValues(OpKind kind, int unit, const Filler& fill, uint32_t array) {
  RETURN_IF_ERROR(ClaimSlot(unit));
  Zero(SlotValues(unit, 0, layout_.units[unit].shards.padded_numel()));
  const std::vector<PlacedParameter>& parameters = layout_.units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) fill(unit, p, SlotValues(unit, parameters[p]));
  Op op;
  op.kind = kind;
  op.unit = unit;
  op.array = array;
  return SubmitSlot(op);
}

absl::Status Session::Initialize(const Filler& fill) {
  if (initialized())
    return absl::FailedPreconditionError(
        absl::StrCat("job '", options_.job_id, "' has its initial values already"));
  for (int unit = 0; unit < num_units(); ++unit)
    RETURN_IF_ERROR(StageValues(OpKind::kInitialize, unit, fill));
  RETURN_IF_ERROR(Submit(OpKind::kFinishInitialize, -1));
  RETURN_IF_ERROR(AwaitResult(OpKind::kFinishInitialize));
  return ResultStatus();
}

absl::Status Session::ReadParameters(int unit, const Reader& read) {
  RETURN_IF_ERROR(ClaimSlot(unit));
  if (!initialized())
    return absl::FailedPreconditionError(
        absl::StrCat("job '", options_.job_id, "' has no initial values yet"));
  RETURN_IF_ERROR(SubmitSlot(OpKind::kRead, unit));
  RETURN_IF_ERROR(AwaitSlot(unit));
  const std::vector<PlacedParameter>& parameters = layout_.units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) read(p, SlotValues(unit, parameters[p]));
  return absl::OkStatus();
}

absl::Status Session::CloseFullWindows() {
  for (int unit = 0; unit < num_units(); ++unit) {
    if (windows_[unit] != Window::kClosed && precisions_[unit] == Precision::kFull)
      RETURN_IF_ERROR(Reshard(unit));
  }
  return absl::OkStatus();
}

absl::Status Session::WriteParameters(const std::vector<int>& units, const Filler& fill) {
  if (!initialized())
    return absl::FailedPreconditionError(
        absl::StrCat("job '", options_.job_id, "' has no initial values yet"));
  RETURN_IF_ERROR(CloseFullWindows());
  for (const int unit : units) RETURN_IF_ERROR(StageValues(OpKind::kWrite, unit, fill));
  RETURN_IF_ERROR(Submit(OpKind::kFinishWrite, -1));
  RETURN_IF_ERROR(AwaitResult(OpKind::kFinishWrite));
  return ResultStatus();
}

absl::Status Session::ReadGradients(int unit, const Reader& read) {
  RETURN_IF_ERROR(CheckNotClipped("reading gradients"));
  RETURN_IF_ERROR(ClaimSlot(unit));
  if (!gradients_[unit].reduced) return absl::OkStatus();
  RETURN_IF_ERROR(SubmitSlot(OpKind::kReadGradient, unit));
  RETURN_IF_ERROR(AwaitSlot(unit));
  const std::vector<PlacedParameter>& parameters = layout_.units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (touched()[plan_.units()[unit].first_parameter + p] == std::byte{0}) continue;
    read(p, SlotValues(unit, parameters[p]));
  }
  return absl::OkStatus();
}

absl::Status Session::WriteGradients(int unit, const GradientFiller& fill) {
  RETURN_IF_ERROR(CheckNotClipped("setting gradients"));
  RETURN_IF_ERROR(ClaimSlot(unit));
  if (gradients_[unit].reduced) {
    RETURN_IF_ERROR(SubmitSlot(OpKind::kReadGradient, unit));
    RETURN_IF_ERROR(AwaitSlot(unit));
  } else {
    Zero(SlotValues(unit, 0, layout_.units[unit].shards.padded_numel()));
  }
  const std::vector<PlacedParameter>& parameters = layout_.units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.requires_grad) continue;
    std::byte& touched_byte = touched()[plan_.units()[unit].first_parameter + p];
    touched_byte =
        std::byte{fill(p, touched_byte != std::byte{0}, SlotValues(unit, parameters[p]))};
  }
  gradients_[unit].reduced = true;
  return SubmitSlot(OpKind::kWriteGradient, unit);
}

}  // namespace tessera
