// Session: operations. What waits is in Await.
#include "client/cpp/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "client/cpp/device_gradients.h"
#include "client/cpp/session_buffers.h"
#include "client/cpp/state_access.h"

namespace tessera {
namespace {

Op OpOf(OpKind kind, int unit) {
  Op op;
  op.kind = kind;
  op.unit = unit;
  return op;
}

// Of those that do, each rank's executor gets one from its trainer.
bool MakesVersion(OpKind kind) {
  return kind == OpKind::kStep || kind == OpKind::kFinishInitialize ||
         kind == OpKind::kFinishWrite || kind == OpKind::kFinishTrainersStep ||
         kind == OpKind::kLoad;
}

}  // namespace

int64_t Session::version() const { return page()->committed_step.load(std::memory_order_acquire); }

int64_t Session::next_step() const {
  return page()->trained_step.load(std::memory_order_acquire) + 1;
}

bool Session::initialized() const {
  return page()->initialized.load(std::memory_order_acquire) != 0;
}

absl::Status Session::CheckUnit(int unit) const {
  if (unit >= 0 && unit < num_units()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no unit ", unit, " of ", num_units()));
}

absl::Status Session::Submit(Op op) {
  ControlPage* control = page();
  RETURN_IF_ERROR(FaultPoint("trainer.operation"));
  if (buffer_hooks_ != nullptr && buffer_hooks_->stage != nullptr && MakesVersion(op.kind)) {
    const absl::Status staged = buffer_hooks_->stage();
    if (!staged.ok()) {
      if (absl::IsAborted(staged)) return staged;
      // This rank's alone: the others, who wait for it in the operation, are told.
      RETURN_IF_ERROR(Fail(staged));
      RETURN_IF_ERROR(Recover());
      agreed_error_ = true;
      return staged;
    }
  }
  const uint32_t number = control->submitted.value.load(std::memory_order_relaxed);
  RETURN_IF_ERROR(
      Await([] { return std::string("room in the submission ring"); },
            [&] { return number - control->consumed.load(std::memory_order_acquire) < kRingOps; }));
  op.epoch = epoch_;
  control->ring[number % kRingOps] = op;
  agreed_error_ = false;
  Publish(&control->submitted, number + 1);
  return absl::OkStatus();
}

absl::Status Session::Submit(OpKind kind, int unit) { return Submit(OpOf(kind, unit)); }

absl::Status Session::Submit(OpKind kind, const StepOptions& step) {
  Op op = OpOf(kind, -1);
  op.learning_rate_scale = step.learning_rate_scale;
  op.gradient_divisor = step.gradient_divisor;
  op.weight = step.weight.value_or(-1.0);
  op.num_groups = step.groups.size();
  std::copy(step.groups.begin(), step.groups.end(), page()->step_groups);
  return Submit(op);
}

absl::Status Session::SubmitAndAwait(Op op) {
  RETURN_IF_ERROR(Submit(op));
  const uint32_t submitted = page()->submitted.value.load();
  return Await([&] { return OpName(op.kind); },
               [&] { return page()->consumed.load(std::memory_order_acquire) == submitted; });
}

absl::Status Session::AwaitResult(OpKind kind) {
  const uint32_t wanted = results_ + 1;
  const OpResult& result = page()->result;
  RETURN_IF_ERROR(Await([kind] { return OpName(kind); },
                        [&] { return result.count.load(std::memory_order_acquire) == wanted; }));
  results_ = wanted;
  agreed_error_ = result.status_code != 0;
  if (buffer_hooks_ != nullptr && buffer_hooks_->take != nullptr && MakesVersion(kind))
    buffer_hooks_->take();
  return absl::OkStatus();
}

absl::Status Session::ResultStatus() const {
  const OpResult& result = page()->result;
  if (result.status_code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(result.status_code),
                      LoadText(result.message, kMaxErrorBytes));
}

absl::Status Session::UnshardAsync(int unit, Precision precision) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (windows_[unit] != Window::kClosed) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': unshard while it is unsharded"));
  }
  Op op = OpOf(OpKind::kUnshard, unit);
  op.full_precision = precision == Precision::kFull ? 1 : 0;
  if (const int other = memory_.slot_windows.OtherIn(unit); other >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "' and unit '", UnitName(other),
                     "' have one slot of the GPU, and the latter is unsharded: reshard it first, "
                     "or give the job more slots by a larger max_gathered_units than ",
                     options_.config.max_gathered_units));
  }
  RETURN_IF_ERROR(Submit(op));
  memory_.slot_windows.Open(unit);
  precisions_[unit] = precision;
  windows_[unit] = Window::kOpening;
  ++unshards_[unit];
  return absl::OkStatus();
}

bool Session::gathered(int unit) const {
  const UnitWords& words = page()->units[unit];
  // Of the window that is opening, or else of the next one.
  const uint32_t window = unshards_[unit] + (windows_[unit] == Window::kClosed ? 1 : 0);
  return (words.gathered_for_step.load(std::memory_order_acquire) == version() + 1 ||
          words.gathered_window.load(std::memory_order_acquire) == window) &&
         page()->failed_epoch.load(std::memory_order_acquire) < epoch_ &&
         page()->epoch.load(std::memory_order_acquire) == epoch_;
}

absl::Status Session::Unshard(int unit, Precision precision) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (windows_[unit] != Window::kOpening) RETURN_IF_ERROR(UnshardAsync(unit, precision));
  if (precisions_[unit] == Precision::kFull || !gathered(unit)) {
    const std::atomic<uint32_t>& unsharded = page()->units[unit].unsharded;
    RETURN_IF_ERROR(
        Await([&] { return absl::StrCat("unit '", UnitName(unit), "'"); },
              [&] { return unsharded.load(std::memory_order_acquire) == unshards_[unit]; }));
  }
  windows_[unit] = Window::kOpen;
  WindowGuard* guard = GuardOf(unit, precisions_[unit]);
  return guard == nullptr ? absl::OkStatus() : guard->Open(unit);
}

absl::Status Session::Reshard(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (windows_[unit] == Window::kOpening) RETURN_IF_ERROR(Unshard(unit));
  if (windows_[unit] == Window::kClosed) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': reshard while it is sharded"));
  }
  WindowGuard* guard = GuardOf(unit, precisions_[unit]);
  if (guard != nullptr) RETURN_IF_ERROR(guard->Close(unit));
  Op op = OpOf(OpKind::kReshard, unit);
  ASSIGN_OR_RETURN(op.array, DeviceGradients(this).EndWindow(unit));
  RETURN_IF_ERROR(Submit(op));
  memory_.slot_windows.Close(unit);
  windows_[unit] = Window::kClosed;
  return absl::OkStatus();
}

absl::Status Session::EndForward() { return Submit(OpKind::kEndForward, -1); }

const std::byte* Session::parameters(int unit) const {
  return memory_.parameters.units[unit].unsharded;
}

const std::byte* Session::parameter(int unit, int parameter) const {
  return parameters(unit) + layout_.units[unit].flat.parameters()[parameter].offset_elements *
                                SizeBytes(plan_.units()[unit].compute_dtype);
}

const std::byte* Session::full_parameter(int unit, int parameter) const {
  return memory_.parameters.units[unit].full +
         layout_.units[unit].flat.parameters()[parameter].offset_elements *
             SizeBytes(full_dtype(unit));
}

WindowGuard* Session::GuardOf(int unit, Precision precision) const {
  const bool is_other = plan_.HasOtherFullMemory(unit);
  return (precision == Precision::kFull && is_other ? full_guard_ : guard_).get();
}

absl::Status Session::CheckStepOptions(const StepOptions& options) const {
  if (!std::isfinite(options.learning_rate_scale) || options.learning_rate_scale < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning-rate scale ", options.learning_rate_scale));
  }
  if (!std::isfinite(options.gradient_divisor) || options.gradient_divisor <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient divisor ", options.gradient_divisor, " is not above 0"));
  }
  if (options.weight.has_value() && !(std::isfinite(*options.weight) && *options.weight >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("weight ", *options.weight, " is below 0"));
  }
  if (!options.groups.empty() && options.groups.size() != options_.config.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step with hyper-parameters of ", options.groups.size(),
                     " param groups; the job has ", options_.config.groups.size()));
  }
  for (size_t i = 0; i < options_.config.groups.size(); ++i) {
    HyperParameters numbers = options_.config.groups[i];
    if (!options.groups.empty()) numbers = options.groups[i];
    numbers.learning_rate *= options.learning_rate_scale;
    RETURN_IF_ERROR(ValidateHyperParameters(numbers, i));
  }
  return absl::OkStatus();
}

absl::Status Session::ReduceRest() {
  for (int unit = 0; unit < num_units(); ++unit) {
    if (windows_[unit] != Window::kClosed) RETURN_IF_ERROR(Reshard(unit));
    if (gradients_[unit].begun) RETURN_IF_ERROR(Reduce(unit));
  }
  for (int unit = 0; unit < num_units(); ++unit) {
    if (hooks_[unit].after && gradients_[unit].reduced && !gradients_[unit].after_hook_ran)
      RETURN_IF_ERROR(RunAfterHook(unit));
  }
  return absl::OkStatus();
}

void Session::ForgetGradients() {
  ForgetTouched();
  clipping_ = Clipping();
  for (UnitGradient& gradient : gradients_) gradient.reduced = gradient.after_hook_ran = false;
}

absl::Status Session::AnnounceStep(const StepOptions& options) {
  RETURN_IF_ERROR(CheckStepOptions(options));
  RETURN_IF_ERROR(Submit(OpKind::kAnnounceStep, options));
  // The numbers lie in one place, which the next operation may write to.
  const uint32_t submitted = page()->submitted.value.load();
  return Await([] { return std::string("the announced step"); },
               [&] { return page()->consumed.load(std::memory_order_acquire) == submitted; });
}

absl::Status Session::Vote(OpKind kind, StepOptions options, double norm_p, double max_norm) {
  RETURN_IF_ERROR(ReduceRest());
  RETURN_IF_ERROR(DeviceGradients(this).Finish());  // No step of gradients that never came.
  options.gradient_divisor /= clipping_.coefficient;
  page()->tally_norm_p = norm_p;
  page()->tally_max_norm = max_norm;
  RETURN_IF_ERROR(Submit(kind, options));
  return AwaitResult(kind);
}

StepResult Session::SkippedStep() {
  ForgetGradients();
  agreed_error_ = false;
  return StepResult{next_step() - 1, 0, /*skipped=*/true};
}

absl::StatusOr<StepResult> Session::Step(const StepOptions& options) {
  RETURN_IF_ERROR(CheckStepOptions(options));
  RETURN_IF_ERROR(Vote(OpKind::kStep, options));
  ForgetGradients();
  const OpResult& result = page()->result;
  if (result.non_finite != 0 && options.skip_non_finite) return SkippedStep();
  RETURN_IF_ERROR(ResultStatus());
  const StepResult step = {next_step() - 1, result.gradient_norm};
  StateAccess(this).SaveWanted();
  return step;
}

absl::StatusOr<StepResult> Session::Step(double learning_rate_scale) {
  StepOptions options;
  options.learning_rate_scale = learning_rate_scale;
  return Step(options);
}

void Session::ForgetTouched() { memset(touched(), 0, plan_.num_parameters()); }

absl::Status Session::DropGradients() {
  clipping_ = Clipping();
  for (UnitGradient& gradient : gradients_) gradient.Drop();
  ForgetTouched();
  return Submit(OpKind::kDropGradients, -1);
}

absl::Status Session::DropGradients(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  const bool any = gradients_[unit].begun || gradients_[unit].reduced;
  gradients_[unit].Drop();
  if (clipping_.done && !within_step()) clipping_ = Clipping();  // Of nothing.
  if (!any) return absl::OkStatus();
  memset(touched() + plan_.units()[unit].first_parameter, 0,
         layout_.units[unit].flat.parameters().size());
  return Submit(OpKind::kDropGradients, unit);
}

}  // namespace tessera
