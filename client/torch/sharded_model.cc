#include "tessera/torch/sharded_model.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/session/session_buffers.h"
#include "client/session/session_setup.h"
#include "client/session/state_access.h"
#include "client/torch/autograd_engine.h"
#include "client/torch/collective_call.h"
#include "client/torch/model_buffers.h"
#include "client/torch/module_states.h"
#include "client/torch/module_units.h"
#include "client/torch/precision_rules.h"
#include "client/torch/profiler_range.h"
#include "client/torch/replaced_parameters.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_device.h"
#include "client/torch/torch_status.h"
#include "client/torch/trainer_tensors.h"
#include "client/torch/unit_lookup.h"
#include "client/torch/unit_windows.h"

namespace tessera {
namespace {

class ShardedModelImpl : public ShardedModel {
 public:
  ShardedModelImpl(std::shared_ptr<torch::nn::Module> root, ModuleUnits units,
                   std::unique_ptr<Session> session, AttachOptions attach)
      : attach_(std::move(attach)),
        root_(std::move(root)),
        units_(std::move(units)),
        session_(std::move(session)) {}

  // Waits for other ranks until `deadline`.
  absl::Status Open(absl::Time deadline);
  Session& session() override { return *session_; }
  absl::Status RunStep(const std::function<absl::Status()>& step_body) override;
  absl::StatusOr<StepResult> StepWithResult(const StepOptions& options) override {
    return CatchTorch([&]() -> absl::StatusOr<StepResult> {
      const ProfilerRange range("step", "all units");
      RETURN_IF_ERROR(PrepareStep());
      return session_->Step(options);
    });
  }
  absl::StatusOr<double> ClipGradNorm(double max_norm, double p,
                                      const StepOptions& options) override {
    return CatchTorch([&]() -> absl::StatusOr<double> {
      // The gradients are written by what the stream was given.
      AwaitStreamOf(DeviceOf(*session_));
      RETURN_IF_ERROR(windows_->kept_gradients().Check());
      RETURN_IF_ERROR(TakeReplacedGradients(session_.get(), units_, &windows_->kept_gradients()));
      return session_->ClipGradNorm(max_norm, p, options);
    });
  }
  absl::Status PrepareStep() override;
  absl::Status SetForwardPrefetch(const torch::nn::Module& module, const Modules& ahead) override;
  absl::Status SetBackwardPrefetch(const torch::nn::Module& module, const Modules& ahead) override;
  absl::Status SetRequiresGradientSync(bool sync, const torch::nn::Module& module,
                                       bool recurse) override;
  absl::Status SetReshardAfterForward(bool reshard, const torch::nn::Module& module,
                                      bool recurse) override;
  std::vector<bool> ExchangeSync(std::vector<bool> sync) override {
    return windows_->rules().ExchangeSync(std::move(sync));
  }
  using ShardedModel::RegisterCommHook;
  absl::Status RegisterCommHook(const torch::nn::Module& module, CommHook hook) override {
    ASSIGN_OR_RETURN(const int unit, UnitOf(units_, module));
    return session_->RegisterCommHook(unit, std::move(hook));
  }
  bool UseOriginalBuffers(bool original) override {
    return windows_->precisions().UseOriginalBuffers(original);
  }
  absl::Status SummonFullParams(const SummonOptions& options,
                                const std::function<absl::Status()>& body) override {
    return CatchTorch([&] { return Summon(options, body); });
  }
  const torch::nn::Module& root() const override { return *root_; }
  const ModuleUnits& units() const override { return units_; }
  absl::Status CheckIdle(absl::string_view what) const override;
  bool in_step() const override { return in_step_; }

 private:
  absl::Status CheckSummon(const SummonOptions& options) const;
  absl::Status Summon(const SummonOptions& options, const std::function<absl::Status()>& body);
  absl::Status RunSummoned(const SummonOptions& options, FullParameters* full,
                           const std::function<absl::Status()>& body);
  absl::Status WriteBack(FullParameters* full);
  // For Sharded<M>::apply.
  absl::Status SummonModule(const torch::nn::Module& module, const std::function<void()>& body);

  const AttachOptions attach_;
  const std::shared_ptr<torch::nn::Module> root_;
  ModuleUnits units_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<UnitWindows> windows_;
  bool in_step_ = false;  // Inside of RunStep.
};

absl::Status ShardedModelImpl::Open(absl::Time deadline) {
  SessionSetup setup(session_.get());
  setup.LimitWaits(deadline);
  setup.LogIfContinued();
  // A successor's module does not have the state's buffers yet.
  if (session_->initialized()) RETURN_IF_ERROR(SessionBuffers(session_.get()).Resume());
  // Where another trainer ends, all begin again with the first values.
  RETURN_IF_ERROR(RunCollective(session_.get(), [this] {
    return session_->initialized() ? absl::OkStatus()
                                   : InitializeJob(session_.get(), units_, *root_, attach_);
  }));
  // From now on the session's own timeouts count.
  setup.LimitWaits(absl::InfiniteFuture());
  StateAccess(session_.get()).SetTrainerTensors(TrainerTensorsOf(this));
  RETURN_IF_ERROR(UseOwnEngine());
  windows_ = std::make_unique<UnitWindows>(
      session_.get(), &units_, root_.get(), attach_.precision.full_precision_in_eval,
      [this](const torch::nn::Module& module, const std::function<void()>& body) {
        return SummonModule(module, body);
      });
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetForwardPrefetch(const torch::nn::Module& module,
                                                  const Modules& ahead) {
  ASSIGN_OR_RETURN(const int unit, UnitOf(units_, module));
  ASSIGN_OR_RETURN(std::vector<int> units, UnitsOf(units_, ahead));
  windows_->prefetch().SetForward(unit, std::move(units));
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetBackwardPrefetch(const torch::nn::Module& module,
                                                   const Modules& ahead) {
  ASSIGN_OR_RETURN(const int unit, UnitOf(units_, module));
  ASSIGN_OR_RETURN(std::vector<int> units, UnitsOf(units_, ahead));
  windows_->prefetch().SetBackward(unit, std::move(units));
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetRequiresGradientSync(bool sync, const torch::nn::Module& module,
                                                       bool recurse) {
  ASSIGN_OR_RETURN(const std::vector<int> units, SomeUnitsBelow(units_, module, recurse));
  for (const int unit : units) windows_->rules().SetSync(unit, sync);
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::SetReshardAfterForward(bool reshard, const torch::nn::Module& module,
                                                      bool recurse) {
  ASSIGN_OR_RETURN(const std::vector<int> units, SomeUnitsBelow(units_, module, recurse));
  for (const int unit : units) windows_->rules().SetReshardAfterForward(unit, reshard);
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::PrepareStep() {
  AwaitStreamOf(DeviceOf(*session_));  // The step writes what its work reads.
  RETURN_IF_ERROR(windows_->kept_gradients().Check());
  // Graphs made before are refused from here on.
  windows_->BeginStep();
  RETURN_IF_ERROR(windows_->TakeReplaced());
  RETURN_IF_ERROR(CheckNoneAdded(*root_, units_, attach_.ignored));
  RETURN_IF_ERROR(TakeReplacedGradients(session_.get(), units_, &windows_->kept_gradients()));
  // After all that may fail: a step that did not begin has dropped nothing.
  windows_->kept_gradients().StepBegins();
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::RunStep(const std::function<absl::Status()>& step_body) {
  // Nested: the inner one must leave it set.
  const bool before = std::exchange(in_step_, true);
  const absl::Status status = session_->RunStep([&] {
    // In each try: what an earlier one added must not be counted twice.
    windows_->DropGradients();
    return CatchTorch(step_body);
  });
  in_step_ = before;
  return status;
}

absl::Status ShardedModelImpl::CheckIdle(absl::string_view what) const {
  if (windows_->summoned())
    return absl::FailedPreconditionError(absl::StrCat(what, ": parameters are summoned already"));
  if (windows_->in_backward())
    return absl::FailedPreconditionError(absl::StrCat(what, ": not possible during backward"));
  if (windows_->in_forward())
    return absl::FailedPreconditionError(absl::StrCat(what, ": not possible during forward"));
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::CheckSummon(const SummonOptions& options) const {
  RETURN_IF_ERROR(ValidateSummonOptions(options, session_->config()));
  RETURN_IF_ERROR(CheckIdle("summon"));
  if (in_step_ && options.writeback) {
    return absl::FailedPreconditionError(
        "summon: writeback within RunStep, which could not undo it with the step");
  }
  return absl::OkStatus();
}

absl::Status ShardedModelImpl::Summon(const SummonOptions& options,
                                      const std::function<absl::Status()>& body) {
  RETURN_IF_ERROR(CheckSummon(options));
  ASSIGN_OR_RETURN(std::vector<int> which, UnitsToSummon(units_, *root_, options));
  FullParameters full(session_.get(), &units_, std::move(which), options);
  absl::Status status = RunCollective(this, [&] { return full.Open(); });
  // Another rank's error, perhaps: the next call begins in the next epoch.
  if (!status.ok() && !absl::IsAborted(status) && !in_step_) RETURN_IF_ERROR(session_->Recover());
  RETURN_IF_ERROR(status);
  windows_->set_summoned(true);
  status = RunSummoned(options, &full, body);
  windows_->set_summoned(false);
  full.Close();
  return status;
}

absl::Status ShardedModelImpl::RunSummoned(const SummonOptions& options, FullParameters* full,
                                           const std::function<absl::Status()>& body) {
  absl::Status status = CatchTorch(body);
  if (!options.writeback) return status;
  if (status.ok()) status = full->Check();
  if (status.ok()) return WriteBack(full);
  // The others would wait for this rank's values, in a new epoch too.
  RETURN_IF_ERROR(session_->Recover());
  RETURN_IF_ERROR(session_->Fail(status));
  RETURN_IF_ERROR(session_->Recover());
  // Aborted would be taken for another process's death, and repeated.
  return absl::IsAborted(status) ? absl::UnknownError(status.message()) : status;
}

absl::Status ShardedModelImpl::WriteBack(FullParameters* full) {
  const bool within_step = session_->within_step();
  bool again = false;
  absl::Status status = RunCollective(session_.get(), [&]() -> absl::Status {
    // Another rank may still have been reading; every rank's next try begins with that.
    if (std::exchange(again, true)) RETURN_IF_ERROR(full->ReadAgain());
    return full->WriteBack();
  });
  // Where the step's gradients were lost, the step is done again, and with it this.
  if (!within_step || status.ok() || absl::IsAborted(status)) return status;
  status = SessionSetup(session_.get()).Tell(status);
  (void)session_->Recover();  // If it cannot, the next call says so.
  return status;
}

absl::Status ShardedModelImpl::SummonModule(const torch::nn::Module& module,
                                            const std::function<void()>& body) {
  SummonOptions options;
  options.module = &module;
  return SummonFullParams(options, [&] {
    body();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<ShardedModel>> AttachModel(std::shared_ptr<torch::nn::Module> root,
                                                          SessionOptions options,
                                                          const WrapPolicy& policy,
                                                          const AttachOptions& attach) {
  if (root == nullptr) return absl::InvalidArgumentError("the root module is null");
  ASSIGN_OR_RETURN(ModuleUnits units, FindUnits(*root, policy, attach.ignored,
                                                MergePrecision(attach.precision, &options.config)));
  std::vector<torch::Tensor> buffers;
  // Before the model casts them: buffers are declared in their own dtypes.
  if (attach.publish_buffers) buffers = DeclareBuffers(*root, attach.ignored, &units);
  options.model = units.model;
  // One deadline for the session and the first values.
  const absl::Time deadline = SteadyNow() + options.attach_timeout;
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Open(options));
  // Before Open, which may already give buffers.
  KeepBuffers(session.get(), std::move(buffers));
  auto model = std::make_unique<ShardedModelImpl>(std::move(root), std::move(units),
                                                  std::move(session), attach);
  RETURN_IF_ERROR(model->Open(deadline));
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Attach(
    std::shared_ptr<torch::nn::Module> root, SessionOptions options, const WrapPolicy& policy,
    const AttachOptions& attach) {
  return CatchTorch(
      [&] { return AttachModel(std::move(root), std::move(options), policy, attach); });
}

}  // namespace tessera
