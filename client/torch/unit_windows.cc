#include "client/torch/unit_windows.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/device_gradients.h"
#include "client/torch/checkpoint.h"
#include "client/torch/precision_rules.h"
#include "client/torch/replaced_parameters.h"

namespace tessera {
namespace {

// Runs after a leaf's gradient was accumulated in a backward, which happens once, with the sum of
// all its uses.
class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> done) : done_(std::move(done)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    done_();
    return outputs;
  }

 private:
  const std::function<void()> done_;
};

}  // namespace

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

UnitWindows::UnitWindows(Session* session, ModuleUnits* units, const torch::nn::Module* root,
                         bool full_precision_in_eval, Summon summon)
    : session_(session),
      units_(units),
      root_(root),
      full_precision_in_eval_(full_precision_in_eval),
      summon_(std::move(summon)),
      precisions_(session, units, full_precision_in_eval),
      prefetch_(session->config().backward_prefetch, session->config().forward_prefetch,
                static_cast<int>(units->modules.size())),
      rules_(session->layout().units, units->root_unit()),
      accumulators_(units->modules.size()),
      backward_(units->modules.size()),
      gradients_(session) {
  for (size_t unit = 0; unit < units_->modules.size(); ++unit) {
    HookUnit(unit);
    const auto& modules = units_->modules[unit];
    forwards_.emplace_back(static_cast<int>(modules.size()));
    for (size_t m = 0; m < modules.size(); ++m) modules[m]->AttachUnit(this, unit, m);
  }
  if (!units_->root_is_unit) units_->root->AttachUnit(this, ShardedBase::kRootWithoutUnit, 0);
}

UnitWindows::~UnitWindows() {
  *alive_ = false;
  for (const auto& modules : units_->modules) {
    for (ShardedBase* module : modules) module->DetachUnit();
  }
  units_->root->DetachUnit();
  for (auto& parameters : units_->parameters) {
    for (torch::Tensor& parameter : parameters)
      parameter.set_data(torch::empty({0}, parameter.options()));
  }
}

// Where libtorch made new accumulators meanwhile, hooks these; those of graphs that still wait for
// their backward keep theirs.
void UnitWindows::HookUnit(int unit) {
  accumulators_[unit].resize(units_->parameters[unit].size());
  for (size_t p = 0; p < units_->parameters[unit].size(); ++p) {
    const torch::Tensor& parameter = units_->parameters[unit][p];
    if (!parameter.requires_grad()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    if (accumulator == accumulators_[unit][p]) continue;
    accumulator->add_post_hook(std::make_unique<AfterAccumulation>([this, alive = alive_, unit, p] {
      if (!*alive) return;
      absl::MutexLock lock(&mu_);
      OnParameterGradient(unit, p);
    }));
    accumulators_[unit][p] = std::move(accumulator);
  }
}

absl::Status UnitWindows::Reshard(int unit) {
  return ReshardBehindStream(session_, unit, units_->parameters[unit].front().device());
}

void UnitWindows::OpenWindow(int unit, Precision precision) {
  if (!session_->closed(unit) && session_->precision(unit) != precision) {
    ThrowIfError(Reshard(unit));
  }
  // A unit that was asked for, as the last time, and not used this time is in nobody's way.
  if (const int other = DeviceGradients(session_).OtherInSlot(unit);
      other >= 0 && !session_->unsharded(other)) {
    ThrowIfError(Reshard(other));
  }
  if (!session_->unsharded(unit)) ThrowIfError(session_->Unshard(unit, precision));
  if (precisions_.UseParameters(unit, precision)) HookUnit(unit);
}

void UnitWindows::PreForward(int unit) {
  absl::MutexLock lock(&mu_);
  const bool is_unit = unit != ShardedBase::kRootWithoutUnit;
  if (in_backward_ || Recomputing()) {
    if (is_unit) PreBackward(unit, prefetch_.LastUse(unit), precisions_.Wanted(unit));
    return;
  }
  if (summoned_) ThrowIfError(absl::FailedPreconditionError("forward inside of SummonFullParams"));
  if (unit == units_->root_unit()) BeginRootForward();
  if (is_unit) {
    OpenWindow(unit, precisions_.Wanted(unit));  // If it is not open.
    if (forwards_[unit].Begin()) AskFor(prefetch_.PreForward(unit), /*for_forward=*/true);
  }
  ++forward_depth_;
}

void UnitWindows::BeginRootForward() {
  prefetch_.BeginForward();
  ForgetForwards();  // An exception may have ended the last one.
  ThrowIfError(TakeReplaced());
  precisions_.UseOriginalBuffers(full_precision_in_eval_ && !root_->is_training());
}

void UnitWindows::EndRootForward() {
  prefetch_.EndForward();
  const bool evaluates = !root_->is_training() && !torch::GradMode::is_enabled();
  if (evaluates) ThrowIfError(session_->EndForward());
}

void UnitWindows::ForgetForwards() {
  forward_depth_ = 0;
  for (ForwardGroup& forward : forwards_) forward.Forget();
}

void UnitWindows::WatchInput(int unit, const torch::Tensor& input) {
  absl::MutexLock lock(&mu_);
  if (unit == ShardedBase::kRootWithoutUnit) return;
  if (in_backward_ || !torch::GradMode::is_enabled() || !input.defined() || !input.requires_grad())
    return;
  ++backward_[unit].inputs_left;
  input.register_hook([this, alive = alive_, unit](const torch::Tensor&) {
    if (!*alive) return;
    absl::MutexLock lock(&mu_);
    // Where no parameter will ever say that the unit's backward is over.
    if (--backward_[unit].inputs_left == 0 && Trainable(unit) == 0) return OnUnitGradient(unit);
    MaybeReshard(unit);
  });
}

void UnitWindows::WatchOutput(int unit, const torch::Tensor& output) {
  absl::MutexLock lock(&mu_);
  if (unit == ShardedBase::kRootWithoutUnit) return;
  if (in_backward_ || !torch::GradMode::is_enabled() || !output.defined() ||
      !output.requires_grad())
    return;
  output.register_hook([this, alive = alive_, unit, use = prefetch_.NextUse(),
                        precision = session_->precision(unit)](const torch::Tensor&) {
    if (!*alive) return;
    absl::MutexLock lock(&mu_);
    PreBackward(unit, use, precision);
  });
}

void UnitWindows::PostForward(int unit, int member) {
  absl::MutexLock lock(&mu_);
  if (in_backward_) return;
  if (forward_depth_ > 0) --forward_depth_;
  if (unit != ShardedBase::kRootWithoutUnit) {
    if (!forwards_[unit].End(member)) return;
    prefetch_.PostForward(unit);
  }
  if (unit == units_->root_unit()) EndRootForward();
  if (unit == ShardedBase::kRootWithoutUnit || !rules_.ReshardsAfterForward(unit)) return;
  ThrowIfError(Reshard(unit));
}

void UnitWindows::AskFor(const std::vector<int>& units, bool for_forward) {
  for (const int unit : units) {
    if (!session_->closed(unit) || DeviceGradients(session_).OtherInSlot(unit) >= 0) continue;
    ThrowIfError(session_->UnshardAsync(
        unit, for_forward ? precisions_.Wanted(unit) : session_->precision(unit)));
  }
}

void UnitWindows::PreBackward(int unit, const PrefetchPlan::Use& use, Precision precision) {
  if (!in_backward_) {
    const std::string changed = FirstReplaced(*session_, *units_);
    if (!changed.empty()) {
      ThrowIfError(absl::FailedPreconditionError(
          absl::StrCat("parameter '", changed, "' was changed between forward and backward")));
    }
    in_backward_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([this, alive = alive_] {
      if (!*alive) return;
      absl::MutexLock lock(&mu_);
      EndOfBackward();
    });
  }
  OpenWindow(unit, precision);
  AskFor(prefetch_.PreBackward(unit, use), /*for_forward=*/false);
}

void UnitWindows::OnParameterGradient(int unit, int parameter) {
  torch::Tensor& tensor = units_->parameters[unit][parameter];
  if (tensor.grad().defined()) {  // A checkpointed segment may not use it.
    ThrowIfError(gradients_.Add(unit, parameter, tensor.grad()));
    tensor.mutable_grad().reset();
  }
  if (++backward_[unit].parameters_ready == Trainable(unit)) OnUnitGradient(unit);
}

int UnitWindows::Trainable(int unit) const {
  int count = 0;
  for (const torch::Tensor& parameter : units_->parameters[unit])
    count += parameter.requires_grad();
  return count;
}

void UnitWindows::OnUnitGradient(int unit) {
  backward_[unit].gradients_done = true;
  MaybeReshard(unit);
  AskFor(prefetch_.PostBackward(unit), /*for_forward=*/false);
  ThrowIfError(gradients_.Flush(unit));
  if (rules_.Syncs(unit) && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
}

void UnitWindows::MaybeReshard(int unit) {
  const UnitBackward& state = backward_[unit];
  // What backward still has to compute of the unit's input may read its parameters.
  if (!in_backward_ || !state.gradients_done || state.inputs_left > 0 ||
      unit == units_->root_unit())
    return;
  if (rules_.ReshardsAfterBackward(unit) && !session_->closed(unit)) ThrowIfError(Reshard(unit));
}

void UnitWindows::EndOfBackward() {
  in_backward_ = false;
  prefetch_.EndBackward();
  for (ForwardGroup& forward : forwards_) forward.Forget();
  for (int unit = session_->num_units() - 1; unit >= 0; --unit) {
    // Units of which some parameter got no gradient.
    ThrowIfError(gradients_.Flush(unit));
    if (rules_.Syncs(unit) && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
    backward_[unit] = {backward_[unit].inputs_left};  // Other forwards may have backwards to come.
    if (rules_.ReshardsAfterBackward(unit) && !session_->closed(unit)) ThrowIfError(Reshard(unit));
  }
}

absl::Status UnitWindows::TakeReplaced() {
  std::vector<int> changed;
  RETURN_IF_ERROR(TakeReplacedParameters(session_, units_, &changed));
  for (const int unit : changed) HookUnit(unit);
  return absl::OkStatus();
}

void UnitWindows::BeginStep() {
  absl::MutexLock lock(&mu_);
  ForgetBackward();
}

void UnitWindows::ForgetBackward() {
  ForgetForwards();
  backward_.assign(backward_.size(), UnitBackward());
}

void UnitWindows::Forget() {
  absl::MutexLock lock(&mu_);  // After an exception some thread of autograd may still be in a hook.
  in_backward_ = false;
  prefetch_.EndBackward();
  gradients_.Drop();
  ForgetBackward();
  for (auto& parameters : units_->parameters) {
    for (torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
}

}  // namespace tessera
