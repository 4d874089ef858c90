#include "client/session/gradient_slots.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"

namespace tessera {

void GradientSlots::Reset() {
  const ModelLayout& layout = client_->layout();
  gradients_.assign(layout.units.size(), UnitGradient());
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    gradients_[unit].contributed.assign(layout.units[unit].flat.parameters().size(), 0);
  clipping_ = Clipping();
  slot_user_.assign(client_->plan().num_gradient_slots(), -1);
  ForgetTouched();
}

void GradientSlots::TakeCounts() {
  for (size_t unit = 0; unit < gradients_.size(); ++unit)
    // What an earlier trainer submitted has been done by now. Counting starts from there.
    gradients_[unit].submitted = client_->page()->units[unit].reduced.load();
}

bool GradientSlots::within_step() const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [](const UnitGradient& unit) { return unit.begun || unit.reduced; });
}

absl::Status GradientSlots::CheckNotClipped(absl::string_view what) const {
  if (!clipping_.done) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " after ClipGradNorm, which the step follows: clip after the last backward of a "
                   "step"));
}

std::byte& GradientSlots::TouchedByte(int unit, int parameter) const {
  const JobMemory& plan = client_->plan();
  // In the shared region, where the executor reads it for the vote.
  return client_->memory().gradients.data()[plan.touched_offset_bytes() +
                                            plan.units()[unit].first_parameter + parameter];
}

bool GradientSlots::touched(int unit, int parameter) const {
  return TouchedByte(unit, parameter) != std::byte{0};
}

void GradientSlots::SetTouched(int unit, int parameter, bool touched) {
  TouchedByte(unit, parameter) = std::byte{touched};
}

void GradientSlots::ForgetTouched() {
  const JobMemory& plan = client_->plan();
  memset(client_->memory().gradients.data() + plan.touched_offset_bytes(), 0,
         plan.num_parameters());
}

void GradientSlots::Forget() {
  ForgetTouched();
  clipping_ = Clipping();
  for (UnitGradient& gradient : gradients_) gradient.reduced = gradient.after_hook_ran = false;
}

absl::Status GradientSlots::Drop() {
  RETURN_IF_ERROR(client_->CheckProcess());
  clipping_ = Clipping();
  for (UnitGradient& gradient : gradients_) gradient.Drop();
  ForgetTouched();
  // The ring keeps the order: reductions that were submitted before are dropped too.
  return client_->Submit(OpOf(OpKind::kDropGradients));
}

absl::Status GradientSlots::Drop(int unit) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  const bool any = gradients_[unit].begun || gradients_[unit].reduced;
  gradients_[unit].Drop();
  if (clipping_.done && !within_step()) clipping_ = Clipping();  // Of nothing.
  if (!any) return absl::OkStatus();
  for (size_t p = 0; p < client_->layout().units[unit].flat.parameters().size(); ++p)
    SetTouched(unit, p, false);
  return client_->Submit(OpOf(OpKind::kDropGradients, unit));
}

std::optional<int> GradientSlots::HolderOf(int unit) const {
  const int user = slot_user_[client_->plan().units()[unit].gradient_slot];
  // Only one whose gradient is begun and not reduced. A reduced slot is only waited for.
  const bool holds = user >= 0 && user != unit && gradients_[user].begun;
  return holds ? std::optional(user) : std::nullopt;
}

absl::Status GradientSlots::Await(int unit) {
  const int user = slot_user_[client_->plan().units()[unit].gradient_slot];
  if (user < 0) return absl::OkStatus();
  if (const std::optional<int> holder = HolderOf(unit); holder.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", client_->UnitName(unit), "' shares its gradient slot with unit '",
                     client_->UnitName(*holder), "', whose gradient is not reduced yet; ",
                     "accumulating without reducing needs gradient_slots = 0"));
  }
  // The executor counts an operation only when it no longer uses the slot.
  const std::atomic<uint32_t>& reduced = client_->page()->units[user].reduced;
  const uint32_t submitted = gradients_[user].submitted;
  return client_->Await(
      [&] { return absl::StrCat("the gradient slot of unit '", client_->UnitName(unit), "'"); },
      [&] { return reduced.load(std::memory_order_acquire) == submitted; });
}

absl::Status GradientSlots::Take(int unit) {
  RETURN_IF_ERROR(Await(unit));
  // Noted at the last, so that a failed wait leaves the slot with its user.
  slot_user_[client_->plan().units()[unit].gradient_slot] = unit;
  return absl::OkStatus();
}

absl::Status GradientSlots::Claim(int unit) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  if (gradients_[unit].begun) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", client_->UnitName(unit), "' has a gradient in its slot that is not reduced yet"));
  }
  return Take(unit);
}

absl::Status GradientSlots::Submit(Op op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(client_->Submit(op));
  // Counted once it is in the ring: each operation on a slot raises `reduced` once.
  ++gradients_[unit].submitted;
  return absl::OkStatus();
}

absl::Status GradientSlots::Read(Op op) {
  RETURN_IF_ERROR(Claim(op.unit));
  RETURN_IF_ERROR(Submit(op));
  return Await(op.unit);
}

absl::Status GradientSlots::Stage(Op op, absl::FunctionRef<void(int, int, Values)> fill) {
  const int unit = op.unit;
  RETURN_IF_ERROR(Claim(unit));
  const Values whole = Whole(unit);
  // Gaps and padding are zero on all ranks, or the replicas would differ.
  memset(whole.data(), 0, whole.size_bytes());
  const std::vector<PlacedParameter>& parameters = client_->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) fill(unit, p, ValuesOf(unit, parameters[p]));
  return Submit(op);
}

std::byte* GradientSlots::Slot(int unit) const {
  const JobMemory& plan = client_->plan();
  return client_->memory().gradients.data() +
         plan.units()[unit].gradient_slot * plan.gradient_slot_bytes();
}

std::byte* GradientSlots::DeviceSlot(int unit) const {
  const JobMemory& plan = client_->plan();
  return client_->memory().device_gradients.data_as<std::byte>() +
         plan.units()[unit].gradient_slot * plan.gradient_slot_bytes();
}

Values GradientSlots::ValuesOf(int unit, int64_t begin_elements, int64_t count) const {
  const DType dtype = client_->layout().units[unit].full_dtype();
  return {Slot(unit) + begin_elements * SizeBytes(dtype), count, dtype};
}

Values GradientSlots::ValuesOf(int unit, const PlacedParameter& placed) const {
  return ValuesOf(unit, placed.offset_elements, placed.numel);
}

Values GradientSlots::Whole(int unit) const {
  return ValuesOf(unit, 0, client_->layout().units[unit].shards.padded_numel());
}

Values GradientSlots::Shard(int unit) const {
  const ElementRange shard = client_->layout().units[unit].shards.RangeOf(Rank(client_->rank()));
  return ValuesOf(unit, shard.begin, shard.size());
}

}  // namespace tessera
