#include "client/torch/sharded_model.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/checkpoint.h"
#include "client/torch/module_states.h"
#include "client/torch/module_units.h"
#include "client/torch/precision_rules.h"
#include "client/torch/prefetch_plan.h"
#include "client/torch/replaced_parameters.h"
#include "client/torch/unit_precision.h"

namespace tessera {
namespace {

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

// What the user's code gives or throws.
absl::Status StatusOf(const std::function<absl::Status()>& body) {
  try {
    return body();
  } catch (const StatusException& e) {
    return e.status();
  } catch (const c10::Error& e) {
    return absl::UnknownError(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return absl::UnknownError(e.what());
  }
}

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

class ShardedModelImpl : public ShardedModel, public UnitObserver {
 public:
  ShardedModelImpl(std::shared_ptr<torch::nn::Module> root, ModuleUnits units,
                   std::unique_ptr<Session> session, AttachOptions attach)
      : attach_(std::move(attach)),
        root_(std::move(root)),
        units_(std::move(units)),
        session_(std::move(session)),
        prefetch_(session_->config().backward_prefetch, session_->config().forward_prefetch,
                  static_cast<int>(units_.modules.size())),
        sync_(units_.modules.size(), true),
        accumulators_(units_.modules.size()),
        backward_(units_.modules.size()) {}
  ~ShardedModelImpl() override;

  absl::Status Open();
  Session& session() override { return *session_; }
  absl::Status RunStep(const std::function<absl::Status()>& step_body, int* redone) override;
  absl::StatusOr<StepResult> StepWithResult(const StepOptions& options) override {
    RETURN_IF_ERROR(PrepareStep());
    return session_->Step(options);
  }
  absl::Status PrepareStep() override;
  absl::Status SetForwardPrefetch(const torch::nn::Module& module, const Modules& ahead) override;
  absl::Status SetBackwardPrefetch(const torch::nn::Module& module, const Modules& ahead) override;
  absl::Status SetRequiresGradientSync(bool sync, const torch::nn::Module& module,
                                       bool recurse) override;
  std::vector<bool> ExchangeSync(std::vector<bool> sync) override {
    sync.resize(sync_.size(), false);
    return std::exchange(sync_, std::move(sync));
  }
  using ShardedModel::RegisterCommHook;
  absl::Status RegisterCommHook(const torch::nn::Module& module, CommHook hook) override {
    ASSIGN_OR_RETURN(const int unit, UnitOf(module));
    return session_->RegisterCommHook(unit, std::move(hook));
  }
  bool UseOriginalBuffers(bool original) override {
    return precisions_->UseOriginalBuffers(original);
  }
  absl::Status SummonFullParams(const SummonOptions& options,
                                const std::function<absl::Status()>& body) override;

  void PreForward(int unit) override;
  std::optional<torch::ScalarType> InputDType(int unit) override {
    return precisions_->InputDType(unit);
  }
  bool CastsResultBack(int unit) override { return units_.casts_results_back[unit]; }
  void WatchInput(int unit, const torch::Tensor& input) override;
  void WatchOutput(int unit, const torch::Tensor& output) override;
  void PostForward(int unit) override;
  void WithFullParameters(const torch::nn::Module& module,
                          const std::function<void()>& body) override;

 private:
  struct UnitBackward {
    int inputs_left = 0;          // Inputs, of any forward, whose gradient is still to come.
    int parameters_ready = 0;     // Whose gradient came in this backward.
    bool gradients_done = false;  // All of its parameters that have some.
  };

  absl::Status CheckSummon(const SummonOptions& options) const;
  absl::Status RunSummoned(const SummonOptions& options, FullParameters* full,
                           const std::function<absl::Status()>& body);
  absl::Status WriteBack(FullParameters* full);
  absl::StatusOr<int> UnitOf(const torch::nn::Module& module) const;
  absl::StatusOr<std::vector<int>> UnitsOf(const Modules& modules) const;
  // Takes in what the user put in place of parameters since the last look.
  absl::Status TakeReplaced();
  Strategy StrategyOf(int unit) const { return session_->layout().units[unit].strategy; }
  void HookUnit(int unit);
  // Makes the unit's parameters readable in this precision, and the module use that.
  void OpenWindow(int unit, Precision precision);
  // Asks for the parameters of those of `units` that are sharded.
  void AskFor(const std::vector<int>& units, bool for_forward);
  // `use`, `precision`: of the forward that backward goes through.
  void PreBackward(int unit, const PrefetchPlan::Use& use, Precision precision);
  int Trainable(int unit) const;  // Parameters.
  void OnParameterGradient(int unit, int parameter);
  void OnUnitGradient(int unit);
  void MaybeReshard(int unit);
  bool ReshardsInBackward(int unit) const;
  void EndOfBackward();
  void Forget();

  const AttachOptions attach_;
  const std::shared_ptr<torch::nn::Module> root_;
  ModuleUnits units_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<UnitPrecisions> precisions_;
  PrefetchPlan prefetch_;
  std::vector<bool> sync_;  // By unit.
  // By unit and parameter; keep the hooks alive.
  std::vector<std::vector<std::shared_ptr<torch::autograd::Node>>> accumulators_;
  bool in_backward_ = false;
  int forward_depth_ = 0;  // Of units' forwards that are under way.
  bool in_step_ = false;   // Inside of RunStep.
  bool summoned_ = false;  // Inside of SummonFullParams.
  std::vector<UnitBackward> backward_;
  std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // For hooks in graphs that outlive this.
};

ShardedModelImpl::~ShardedModelImpl() {
  *alive_ = false;
  precisions_.reset();
  for (ShardedBase* module : units_.modules) module->AttachUnit(nullptr, -1);
  for (auto& parameters : units_.parameters) {
    for (torch::Tensor& parameter : parameters)
      parameter.set_data(torch::empty({0}, parameter.options()));
  }
}

absl::Status ShardedModelImpl::Open() {
  while (!session_->initialized()) {
    const absl::Status status = InitializeJob(session_.get(), units_, *root_, attach_);
    if (!absl::IsAborted(status)) RETURN_IF_ERROR(status);
    if (absl::IsAborted(status)) RETURN_IF_ERROR(session_->Recover());
  }
  precisions_ = std::make_unique<UnitPrecisions>(session_.get(), &units_,
                                                 attach_.precision.full_precision_in_eval);
  for (size_t unit = 0; unit < units_.modules.size(); ++unit) {
    HookUnit(unit);
    units_.modules[unit]->AttachUnit(this, unit);
  }
  return absl::OkStatus();
}

// Where libtorch made new accumulators meanwhile, hooks these; those of graphs that still wait for
// their backward keep theirs.
void ShardedModelImpl::HookUnit(int unit) {
  accumulators_[unit].resize(units_.parameters[unit].size());
  for (size_t p = 0; p < units_.parameters[unit].size(); ++p) {
    const torch::Tensor& parameter = units_.parameters[unit][p];
    if (!parameter.requires_grad()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    if (accumulator == accumulators_[unit][p]) continue;
    accumulator->add_post_hook(std::make_unique<AfterAccumulation>([this, alive = alive_, unit, p] {
      if (*alive) OnParameterGradient(unit, p);
    }));
    accumulators_[unit][p] = std::move(accumulator);
  }
}

void ShardedModelImpl::OpenWindow(int unit, Precision precision) {
  if (!session_->closed(unit) && session_->precision(unit) != precision) {
    ThrowIfError(session_->Reshard(unit));
  }
  if (!session_->unsharded(unit)) ThrowIfError(session_->Unshard(unit, precision));
  if (precisions_->UseParameters(unit, precision)) HookUnit(unit);
}

void ShardedModelImpl::PreForward(int unit) {
  if (in_backward_ || Recomputing())
    return PreBackward(unit, prefetch_.LastUse(unit), precisions_->Wanted(unit));
  if (summoned_) ThrowIfError(absl::FailedPreconditionError("forward inside of SummonFullParams"));
  if (unit == 0) {
    prefetch_.BeginForward();
    forward_depth_ = 0;  // An exception may have ended the last one.
    ThrowIfError(TakeReplaced());
    precisions_->UseOriginalBuffers(attach_.precision.full_precision_in_eval &&
                                    !root_->is_training());
  }
  OpenWindow(unit, precisions_->Wanted(unit));
  AskFor(prefetch_.PreForward(unit), /*for_forward=*/true);
  ++forward_depth_;
}

void ShardedModelImpl::WatchInput(int unit, const torch::Tensor& input) {
  if (in_backward_ || !torch::GradMode::is_enabled() || !input.defined() || !input.requires_grad())
    return;
  ++backward_[unit].inputs_left;
  input.register_hook([this, alive = alive_, unit](const torch::Tensor&) {
    if (!*alive) return;
    // Where no parameter will ever say that the unit's backward is over.
    if (--backward_[unit].inputs_left == 0 && Trainable(unit) == 0) return OnUnitGradient(unit);
    MaybeReshard(unit);
  });
}

void ShardedModelImpl::WatchOutput(int unit, const torch::Tensor& output) {
  if (in_backward_ || !torch::GradMode::is_enabled() || !output.defined() ||
      !output.requires_grad())
    return;
  output.register_hook([this, alive = alive_, unit, use = prefetch_.NextUse(),
                        precision = session_->precision(unit)](const torch::Tensor&) {
    if (*alive) PreBackward(unit, use, precision);
  });
}

void ShardedModelImpl::PostForward(int unit) {
  if (!in_backward_ && forward_depth_ > 0) --forward_depth_;
  if (!in_backward_) prefetch_.PostForward(unit);
  const bool evaluates = unit == 0 && !root_->is_training() && !torch::GradMode::is_enabled();
  if (evaluates && !in_backward_) ThrowIfError(session_->EndForward());
  // The root is needed first in backward, so it stays; so do all units of the other strategies.
  if (in_backward_ || unit == 0 || !ReshardsAfterForward(StrategyOf(unit))) return;
  ThrowIfError(session_->Reshard(unit));
}

void ShardedModelImpl::AskFor(const std::vector<int>& units, bool for_forward) {
  for (const int unit : units) {
    if (!session_->closed(unit)) continue;
    ThrowIfError(session_->UnshardAsync(
        unit, for_forward ? precisions_->Wanted(unit) : session_->precision(unit)));
  }
}

void ShardedModelImpl::PreBackward(int unit, const PrefetchPlan::Use& use, Precision precision) {
  if (!in_backward_) {
    const std::string changed = FirstReplaced(*session_, units_);
    if (!changed.empty()) {
      ThrowIfError(absl::FailedPreconditionError(
          absl::StrCat("parameter '", changed, "' was changed between forward and backward")));
    }
    in_backward_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([this, alive = alive_] {
      if (*alive) EndOfBackward();
    });
  }
  OpenWindow(unit, precision);
  AskFor(prefetch_.PreBackward(unit, use), /*for_forward=*/false);
}

void ShardedModelImpl::OnParameterGradient(int unit, int parameter) {
  torch::Tensor& tensor = units_.parameters[unit][parameter];
  if (tensor.grad().defined()) {  // A checkpointed segment may not use it.
    const DType dtype = session_->full_dtype(unit);
    torch::Tensor gradient = tensor.grad().detach().to(ScalarTypeOf(dtype));
    // Of an embedding, perhaps: rows that come twice are summed in full precision.
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    gradient = gradient.contiguous();
    ThrowIfError(session_->AddGradient(unit, parameter,
                                       ConstValues(gradient.data_ptr(), gradient.numel(), dtype)));
    tensor.mutable_grad().reset();
  }
  if (++backward_[unit].parameters_ready == Trainable(unit)) OnUnitGradient(unit);
}

int ShardedModelImpl::Trainable(int unit) const {
  int count = 0;
  for (const torch::Tensor& parameter : units_.parameters[unit]) count += parameter.requires_grad();
  return count;
}

void ShardedModelImpl::OnUnitGradient(int unit) {
  backward_[unit].gradients_done = true;
  MaybeReshard(unit);
  AskFor(prefetch_.PostBackward(unit), /*for_forward=*/false);
  if (sync_[unit] && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
}

void ShardedModelImpl::MaybeReshard(int unit) {
  const UnitBackward& state = backward_[unit];
  // What backward still has to compute of the unit's input may read its parameters.
  if (!in_backward_ || !state.gradients_done || state.inputs_left > 0 || unit == 0) return;
  if (ReshardsInBackward(unit) && !session_->closed(unit)) ThrowIfError(session_->Reshard(unit));
}

// Where gradients only accumulate, the next forward needs the same parameters.
bool ShardedModelImpl::ReshardsInBackward(int unit) const {
  const Strategy strategy = StrategyOf(unit);
  return ReshardsAfterForward(strategy) || (ReshardsAfterBackward(strategy) && sync_[unit]);
}

void ShardedModelImpl::EndOfBackward() {
  in_backward_ = false;
  prefetch_.EndBackward();
  for (int unit = session_->num_units() - 1; unit >= 0; --unit) {
    // Units of which some parameter got no gradient.
    if (sync_[unit] && session_->has_gradient(unit)) ThrowIfError(session_->Reduce(unit));
    backward_[unit] = {backward_[unit].inputs_left};  // Other forwards may have backwards to come.
    if (ReshardsInBackward(unit) && !session_->closed(unit)) ThrowIfError(session_->Reshard(unit));
  }
}

absl::Status ShardedModelImpl::SetForwardPrefetch(const torch::nn::Module& module,
                                                  const Modules& ahead) {
  ASSIGN_OR_RETURN(const int unit, UnitOf(module));
  ASSIGN_OR_RETURN(std::vector<int> units, UnitsOf(ahead));
  prefetch_.SetForward(unit, std::move(units));
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetBackwardPrefetch(const torch::nn::Module& module,
                                                   const Modules& ahead) {
  ASSIGN_OR_RETURN(const int unit, UnitOf(module));
  ASSIGN_OR_RETURN(std::vector<int> units, UnitsOf(ahead));
  prefetch_.SetBackward(unit, std::move(units));
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetRequiresGradientSync(bool sync, const torch::nn::Module& module,
                                                       bool recurse) {
  const std::vector<int> units = UnitsBelow(units_, module, recurse);
  if (units.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no unit of this model ",
                                                   recurse ? "is at or below" : "is", " module '",
                                                   module.name(), "'"));
  }
  for (const int unit : units) sync_[unit] = sync;
  return absl::OkStatus();
}

absl::StatusOr<int> ShardedModelImpl::UnitOf(const torch::nn::Module& module) const {
  const std::vector<int> units = UnitsBelow(units_, module, /*recurse=*/false);
  if (!units.empty()) return units[0];
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is no unit of this model"));
}

absl::StatusOr<std::vector<int>> ShardedModelImpl::UnitsOf(const Modules& modules) const {
  std::vector<int> units;
  for (const torch::nn::Module* module : modules) {
    if (module == nullptr) return absl::InvalidArgumentError("a module of the list is null");
    ASSIGN_OR_RETURN(units.emplace_back(), UnitOf(*module));
  }
  return units;
}

absl::Status ShardedModelImpl::PrepareStep() {
  forward_depth_ = 0;
  backward_.assign(backward_.size(), UnitBackward());
  RETURN_IF_ERROR(TakeReplaced());
  return TakeReplacedGradients(session_.get(), units_);
}

absl::Status ShardedModelImpl::TakeReplaced() {
  std::vector<int> changed;
  RETURN_IF_ERROR(TakeReplacedParameters(session_.get(), &units_, &changed));
  for (const int unit : changed) HookUnit(unit);
  return absl::OkStatus();
}

void ShardedModelImpl::Forget() {
  in_backward_ = false;
  forward_depth_ = 0;
  prefetch_.EndBackward();
  backward_.assign(backward_.size(), UnitBackward());
  for (auto& parameters : units_.parameters) {
    for (torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
}

absl::Status ShardedModelImpl::RunStep(const std::function<absl::Status()>& step_body,
                                       int* redone) {
  const bool before = std::exchange(in_step_, true);
  const absl::Status status = session_->RunStep(
      [&] {
        Forget();
        return StatusOf(step_body);
      },
      redone);
  in_step_ = before;
  return status;
}

absl::Status ShardedModelImpl::CheckSummon(const SummonOptions& options) const {
  RETURN_IF_ERROR(ValidateSummonOptions(options, session_->config()));
  if (summoned_) return absl::FailedPreconditionError("summon: parameters are summoned already");
  if (in_backward_) return absl::FailedPreconditionError("summon: not possible during backward");
  if (forward_depth_ > 0)
    return absl::FailedPreconditionError("summon: not possible during forward");
  if (in_step_ && options.writeback) {
    return absl::FailedPreconditionError(
        "summon: writeback within RunStep, which could not undo it with the step");
  }
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SummonFullParams(const SummonOptions& options,
                                                const std::function<absl::Status()>& body) {
  RETURN_IF_ERROR(CheckSummon(options));
  ASSIGN_OR_RETURN(std::vector<int> which, UnitsToSummon(units_, *root_, options));
  FullParameters full(session_.get(), &units_, std::move(which), options);
  absl::Status status = full.Open();
  while (absl::IsAborted(status) && !in_step_ && !session_->within_step()) {
    RETURN_IF_ERROR(session_->Recover());
    status = full.Open();
  }
  // Another rank's error, perhaps: the next call begins in the next epoch.
  if (!status.ok() && !absl::IsAborted(status) && !in_step_) RETURN_IF_ERROR(session_->Recover());
  RETURN_IF_ERROR(status);
  summoned_ = true;
  status = RunSummoned(options, &full, body);
  summoned_ = false;
  full.Close();
  // A change of dtype makes libtorch forget what hooks hang on.
  for (const int unit : full.units()) HookUnit(unit);
  return status;
}

absl::Status ShardedModelImpl::RunSummoned(const SummonOptions& options, FullParameters* full,
                                           const std::function<absl::Status()>& body) {
  absl::Status status = StatusOf(body);
  if (!options.writeback) return status;
  if (status.ok()) status = full->Check();
  if (status.ok()) return WriteBack(full);
  // The others would wait for this rank's values, in a new epoch too.
  RETURN_IF_ERROR(session_->Recover());
  RETURN_IF_ERROR(session_->Fail(status));
  RETURN_IF_ERROR(session_->Recover());
  return absl::IsAborted(status) ? absl::UnknownError(status.message()) : status;
}

absl::Status ShardedModelImpl::WriteBack(FullParameters* full) {
  const bool within_step = session_->within_step();
  const int64_t writes = session_->num_writes();
  while (true) {
    const absl::Status status = full->WriteBack();
    if (status.ok()) return status;
    if (absl::IsAborted(status) && within_step) return status;
    RETURN_IF_ERROR(session_->Recover());
    if (!absl::IsAborted(status)) return status;
    if (session_->num_writes() > writes) return absl::OkStatus();
    // Another rank may still have been reading; every rank's next try begins with that.
    const absl::Status read = full->ReadAgain();
    if (!read.ok() && !absl::IsAborted(read)) return read;
  }
}

void ShardedModelImpl::WithFullParameters(const torch::nn::Module& module,
                                          const std::function<void()>& body) {
  SummonOptions options;
  options.module = &module;
  ThrowIfError(SummonFullParams(options, [&] {
    body();
    return absl::OkStatus();
  }));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Attach(
    std::shared_ptr<torch::nn::Module> root, SessionOptions options, const WrapPolicy& policy,
    const AttachOptions& attach) {
  ASSIGN_OR_RETURN(ModuleUnits units, FindUnits(*root, policy, attach.ignored,
                                                MergePrecision(attach.precision, &options.config)));
  options.model = units.model;
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Open(options));
  auto model = std::make_unique<ShardedModelImpl>(std::move(root), std::move(units),
                                                  std::move(session), attach);
  RETURN_IF_ERROR(model->Open());
  return model;
}

}  // namespace tessera
