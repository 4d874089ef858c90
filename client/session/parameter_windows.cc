#include "client/session/parameter_windows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/trainer_events.h"

namespace tessera {

void ParameterWindows::Guard() {
  if (!client_->options().guard_windows) return;
  const JobMemory& plan = client_->plan();
  std::vector<WindowGuard::UnitPages> pages, full_pages;
  bool any_other = false;
  for (int u = 0; u < client_->num_units(); ++u) {
    const UnitMemory& unit = plan.units()[u];
    const bool is_other = plan.HasOtherFullMemory(u);
    any_other |= is_other;
    const UnitParameters& at = client_->memory().parameters.units[u];
    pages.push_back({at.unsharded, unit.parameter_bytes, SizeBytes(unit.compute_dtype)});
    full_pages.push_back({at.full, is_other ? unit.full_bytes : 0, SizeBytes(unit.full_dtype)});
  }
  guard_ = std::make_unique<WindowGuard>(&client_->layout(), std::move(pages));
  if (any_other)
    full_guard_ = std::make_unique<WindowGuard>(&client_->layout(), std::move(full_pages));
}

void ParameterWindows::Reset() {
  const int num_units = client_->num_units();
  windows_.assign(num_units, Window::kClosed);
  precisions_.assign(num_units, Precision::kCompute);
  unshards_.assign(num_units, 0);
  MappedRank& memory = client_->memory();
  memory.slot_windows.Reset(memory.parameters.plan);
  for (int unit = 0; unit < num_units; ++unit) {
    // If it fails, a use at the wrong time is not noticed. Nothing else depends on it.
    if (guard_ != nullptr) (void)guard_->Close(unit);
    if (full_guard_ != nullptr) (void)full_guard_->Close(unit);
  }
}

absl::Status ParameterWindows::TakeOver() {
  for (int unit = 0; unit < client_->num_units(); ++unit) {
    const UnitWords& words = client_->page()->units[unit];
    // The counts go on in this epoch, with whichever trainer.
    unshards_[unit] = words.unsharded.load();
    if (words.state.load() == static_cast<uint32_t>(UnitState::kSharded)) continue;
    // An earlier trainer of this epoch left it open. The executor still counts it as unsharded.
    windows_[unit] = Window::kOpen;
    RETURN_IF_ERROR(Close(unit));
  }
  return absl::OkStatus();
}

absl::Status ParameterWindows::OpenAsync(int unit, Precision precision) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  if (windows_[unit] != Window::kClosed) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", client_->UnitName(unit), "': unshard while it is unsharded"));
  }
  Op op = OpOf(OpKind::kUnshard, unit);
  op.full_precision = precision == Precision::kFull ? 1 : 0;
  // Refused here: in the executor it would end the epoch of all ranks.
  if (const int other = client_->memory().slot_windows.OtherIn(unit); other >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", client_->UnitName(unit), "' and unit '", client_->UnitName(other),
                     "' have one slot of the GPU, and the latter is unsharded: reshard it first, "
                     "or give the job more slots by a larger max_gathered_units than ",
                     client_->options().config.max_gathered_units));
  }
  RETURN_IF_ERROR(client_->Submit(op));
  client_->memory().slot_windows.Open(unit);
  precisions_[unit] = precision;
  windows_[unit] = Window::kOpening;
  // Counted after the submission, as the executor counts.
  ++unshards_[unit];
  return absl::OkStatus();
}

bool ParameterWindows::gathered(int unit) const {
  const UnitWords& words = client_->page()->units[unit];
  // Of the window that is opening, or else of the next one.
  // The executor may have closed it for a write, so all of these are looked at each time.
  const uint32_t window = unshards_[unit] + (windows_[unit] == Window::kClosed ? 1 : 0);
  // The epoch's words come last: a unit that was gathered in an epoch that failed is not.
  return (words.gathered_for_step.load(std::memory_order_acquire) == client_->version() + 1 ||
          words.gathered_window.load(std::memory_order_acquire) == window) &&
         client_->page()->failed_epoch.load(std::memory_order_acquire) < client_->epoch() &&
         client_->page()->epoch.load(std::memory_order_acquire) == client_->epoch();
}

absl::Status ParameterWindows::Open(int unit, Precision precision) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  if (windows_[unit] != Window::kOpening) RETURN_IF_ERROR(OpenAsync(unit, precision));
  // Full precision is never gathered ahead.
  if (precisions_[unit] == Precision::kFull || !gathered(unit)) {
    const std::atomic<uint32_t>& unsharded = client_->page()->units[unit].unsharded;
    RETURN_IF_ERROR(client_->Await(
        [&] { return absl::StrCat("unit '", client_->UnitName(unit), "'"); },
        [&] { return unsharded.load(std::memory_order_acquire) == unshards_[unit]; }));
  }
  // Open from the trainer's view even if protecting fails: Close must give it back.
  windows_[unit] = Window::kOpen;
  WindowGuard* guard = GuardOf(unit, precisions_[unit]);
  return guard == nullptr ? absl::OkStatus() : guard->Open(unit);
}

absl::Status ParameterWindows::Close(int unit) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  // The executor may be filling it: a window closes only once it was open.
  if (windows_[unit] == Window::kOpening) RETURN_IF_ERROR(Open(unit, precisions_[unit]));
  if (windows_[unit] == Window::kClosed) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", client_->UnitName(unit), "': reshard while it is sharded"));
  }
  WindowGuard* guard = GuardOf(unit, precisions_[unit]);
  // Before the operation, after which the executor may overwrite or release the memory.
  if (guard != nullptr) RETURN_IF_ERROR(guard->Close(unit));
  Op op = OpOf(OpKind::kReshard, unit);
  // On a GPU kernels may still read it. The executor waits for this event before it reuses the
  // slot.
  ASSIGN_OR_RETURN(op.array_or_event, EndWindow(client_, unit));
  RETURN_IF_ERROR(client_->Submit(op));
  client_->memory().slot_windows.Close(unit);
  windows_[unit] = Window::kClosed;
  return absl::OkStatus();
}

absl::Status ParameterWindows::CloseAll() {
  for (int unit = 0; unit < client_->num_units(); ++unit) {
    if (!is_closed(unit)) RETURN_IF_ERROR(Close(unit));
  }
  return absl::OkStatus();
}

absl::Status ParameterWindows::CloseFull() {
  for (int unit = 0; unit < client_->num_units(); ++unit) {
    if (!is_closed(unit) && precisions_[unit] == Precision::kFull) RETURN_IF_ERROR(Close(unit));
  }
  return absl::OkStatus();
}

const std::byte* ParameterWindows::parameters(int unit) const {
  return client_->memory().parameters.units[unit].unsharded;
}

const std::byte* ParameterWindows::parameter(int unit, int parameter) const {
  return parameters(unit) +
         client_->layout().units[unit].flat.parameters()[parameter].offset_elements *
             SizeBytes(client_->plan().units()[unit].compute_dtype);
}

const std::byte* ParameterWindows::full_parameter(int unit, int parameter) const {
  return client_->memory().parameters.units[unit].full +
         client_->layout().units[unit].flat.parameters()[parameter].offset_elements *
             SizeBytes(client_->layout().units[unit].full_dtype());
}

WindowGuard* ParameterWindows::GuardOf(int unit, Precision precision) const {
  const bool is_other = client_->plan().HasOtherFullMemory(unit);
  return (precision == Precision::kFull && is_other ? full_guard_ : guard_).get();
}

}  // namespace tessera
