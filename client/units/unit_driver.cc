#include "client/units/unit_driver.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace tessera {

UnitDriver::UnitDriver(Options options, WindowRules rules, PrefetchPlan prefetch, UnitHost* host)
    : options_(std::move(options)),
      rules_(std::move(rules)),
      prefetch_(std::move(prefetch)),
      host_(host) {
  for (const int num_modules : options_.num_modules) units_.emplace_back(num_modules);
}

absl::Status UnitDriver::Take(int unit, WindowEvent event, Precision precision) {
  const WindowTransition to = Transition(units_[unit].state, event);
  // The state changes only once it is open.
  if (to.action == WindowAction::kOpen) RETURN_IF_ERROR(host_->Open(unit, precision));
  units_[unit].state = to.next;
  if (to.action == WindowAction::kMayCloseAfterForward && rules_.ReshardsAfterForward(unit) &&
      units_[unit].group.has_ended()) {
    return host_->Close(unit);
  }
  if (to.action == WindowAction::kMayCloseAfterBackward && rules_.ReshardsAfterBackward(unit))
    return host_->Close(unit);
  return absl::OkStatus();
}

absl::Status UnitDriver::AskFor(const std::vector<int>& units, bool for_forward) {
  for (const int unit : units) {
    touched_.insert(unit);
    RETURN_IF_ERROR(host_->AskFor(unit, for_forward));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<UnitForward>> UnitDriver::BeginForward(int unit,
                                                                      Precision precision) {
  auto forward = std::make_shared<UnitForward>();
  forward->unit = unit;
  forward->precision = precision;
  forward->in_backward = in_backward();
  if (BeginsModel(unit)) {
    // Not in a forward within a forward, whose outer one may use what is open.
    if (!in_forward()) RETURN_IF_ERROR(CloseLeftOpen());
    // An exception may have ended the last forward in the middle.
    prefetch_.BeginForward();
    ForgetGroups();
  }
  if (unit != kNoUnit) RETURN_IF_ERROR(OpenForForward(forward.get()));
  if (unit != kNoUnit) ++units_[unit].forwards;
  if (!forward->in_backward) ++forwards_running_;
  return forward;
}

absl::Status UnitDriver::OpenForForward(UnitForward* forward) {
  const int unit = forward->unit;
  if (forward->in_backward) {
    touched_.insert(unit);
    forward->use = prefetch_.LastUse(unit);
    RETURN_IF_ERROR(Take(unit, WindowEvent::kRecomputeBegins, forward->precision));
    return AskFor(prefetch_.PreBackward(unit, forward->use), /*for_forward=*/false);
  }
  RETURN_IF_ERROR(Take(unit, WindowEvent::kForwardBegins, forward->precision));
  if (!units_[unit].group.Begin()) return absl::OkStatus();
  return AskFor(prefetch_.PreForward(unit), /*for_forward=*/true);
}

absl::StatusOr<bool> UnitDriver::EndForward(UnitForward* forward, int module) {
  const int unit = forward->unit;
  if (!forward->in_backward) {
    --forwards_running_;
    forward->use = prefetch_.NextUse();
    if (unit != kNoUnit && units_[unit].group.End(module)) prefetch_.PostForward(unit);
  }
  if (unit != kNoUnit && --units_[unit].forwards == 0)
    // A unit may be in several forwards at once, as in recursion.
    RETURN_IF_ERROR(Take(unit, WindowEvent::kForwardEnds));
  if (forward->in_backward || unit != options_.root) return false;
  prefetch_.EndForward();
  return true;
}

void UnitDriver::AbandonForward(const UnitForward& forward) {
  if (!forward.in_backward) --forwards_running_;
  if (forward.unit == kNoUnit) return;
  touched_.insert(forward.unit);
  left_open_.insert(forward.unit);
  Unit& unit = units_[forward.unit];
  // Without closing: an exception is under way, and may be this rank's alone.
  if (--unit.forwards == 0) unit.state = Transition(unit.state, WindowEvent::kForwardEnds).next;
}

void UnitDriver::BeginBackward(BackwardWork work) {
  for (const auto& [unit, of_unit] : work) {
    units_[unit].nodes += of_unit.nodes;
    units_[unit].gradients += of_unit.gradients;
    touched_.insert(unit);
  }
  backwards_.push_back(std::move(work));
}

absl::Status UnitDriver::BeginNode(const UnitForward& forward) {
  RETURN_IF_ERROR(Take(forward.unit, WindowEvent::kNodeBegins, forward.precision));
  return AskFor(prefetch_.PreBackward(forward.unit, forward.use), /*for_forward=*/false);
}

absl::Status UnitDriver::EndNode(const UnitForward& forward) {
  Unit& unit = units_[forward.unit];
  int& left = backwards_.back()[forward.unit].nodes;
  // Counts are of what was announced. Other nodes must not make them negative.
  if (left == 0) return absl::OkStatus();  // It was not announced; the backward's end closes.
  --left;
  --unit.nodes;
  return EndWork(forward.unit);
}

// A gradient that is left says that a segment of the unit may still be computed again.
absl::Status UnitDriver::EndWork(int unit) {
  if (units_[unit].nodes > 0 || units_[unit].gradients > 0) return absl::OkStatus();
  RETURN_IF_ERROR(Take(unit, WindowEvent::kWorkEnds));
  return AskFor(prefetch_.PostBackward(unit), /*for_forward=*/false);
}

absl::Status UnitDriver::MakeRoom(int unit) {
  const std::optional<int> holder = host_->HolderOfSlot(unit);
  return holder.has_value() ? ReduceIfSynced(*holder) : absl::OkStatus();
}

// Without synchronisation gradients only accumulate.
absl::Status UnitDriver::ReduceIfSynced(int unit) {
  if (!rules_.Syncs(unit)) return absl::OkStatus();
  // A unit whose gradient is begun may have the slot.
  RETURN_IF_ERROR(MakeRoom(unit));
  return host_->Reduce(unit);
}

absl::Status UnitDriver::OnGradient(int unit) {
  int& left = backwards_.back()[unit].gradients;
  if (left == 0) return absl::OkStatus();
  --left;
  if (--units_[unit].gradients > 0) return absl::OkStatus();
  RETURN_IF_ERROR(EndWork(unit));
  return ReduceIfSynced(unit);
}

absl::Status UnitDriver::EndBackward(bool failed) {
  for (const auto& [unit, left] : backwards_.back()) {
    // What did not run of this backward is taken back.
    units_[unit].nodes -= left.nodes;
    units_[unit].gradients -= left.gradients;
  }
  backwards_.pop_back();
  if (in_backward()) return absl::OkStatus();
  prefetch_.EndBackward();
  if (failed) {
    // What is open stays until a backward ends, the model's next forward begins, or the step.
    for (const int unit : touched_) {
      units_[unit].state = Transition(units_[unit].state, WindowEvent::kBackwardEnds).next;
      left_open_.insert(unit);
    }
    return absl::OkStatus();
  }
  if (!in_forward()) ForgetGroups();
  const std::set<int> touched = std::exchange(touched_, {});
  // In reverse, as a backward goes: all ranks reduce in the same order.
  for (int unit = static_cast<int>(units_.size()) - 1; unit >= 0; --unit) {
    RETURN_IF_ERROR(ReduceIfSynced(unit));  // Also what earlier backwards accumulated.
    if (touched.count(unit) > 0) RETURN_IF_ERROR(Take(unit, WindowEvent::kBackwardEnds));
  }
  return absl::OkStatus();
}

// Units that share memory cannot be open at the same time: one that nothing closes any more would
// be in the others' way.
absl::Status UnitDriver::CloseLeftOpen() {
  for (const int unit : std::exchange(left_open_, {})) {
    if (units_[unit].forwards == 0) RETURN_IF_ERROR(host_->Close(unit));
  }
  return absl::OkStatus();
}

void UnitDriver::ForgetGroups() {
  for (Unit& unit : units_) unit.group.Forget();
}

}  // namespace tessera
