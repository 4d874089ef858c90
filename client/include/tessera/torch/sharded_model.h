// Trains a module tree of Sharded<> units against a Tessera cluster. The loop changes by few lines:
//
//   auto model = std::make_shared<tessera::Sharded<GptImpl>>(config);
//   auto sharded = *tessera::ShardedModel::Attach(model, options);      // instead of an optimizer
//   while (sharded->next_step() <= steps) {
//     absl::Status status = sharded->RunStep([&] {
//       torch::Tensor loss = model->forward(batch(sharded->next_step()));
//       loss.backward();
//       return sharded->Step(schedule(sharded->next_step()));
//     });
//     ...
//   }
//
// Attaching replaces the parameters' memory by the cluster's: initial values come from the module
// when the job is new, else the module takes the job's. Parameters are at stable addresses, so
// views that autograd saved stay valid; they can be read only while their unit is unsharded, and
// never written in place. Buffers stay the trainer's own; units.h says when their dtype
// changes, AttachOptions::publish_buffers how readers of the live state get them.
//
// To set parameters, use SummonFullParams or apply(). Or, between steps and on all ranks, give a
// parameter other data or register another tensor: its values are taken at the next forward of the
// root, or step. A grad() that is set after backward is taken at the step, in place of the mean
// over the ranks: all ranks set the same. Another shape, or a change between forward and backward,
// is an error (FailedPrecondition) that names the parameter; so is, at the step, a parameter that
// needs a gradient and was registered after attaching.
//
// Gradients go to the job, which has their mean over the ranks. After backward grad() is a tensor
// of the parameter's shape whose elements cannot be read, so torch's optimizers
// and clip_grad_norm_ fail by name. Use instead: Step, ShardOptimizer (shard_optimizer.h) for an
// optimizer of torch, ClipGradNorm, zero_grad() of a Sharded<> module, CommHook to change
// gradients, SummonFullParams to read them.
//
// Confined to one thread. While attached the module must outlive this. The destructor detaches and
// leaves each parameter empty, with its name. Source: hook points as
// torch/distributed/fsdp/_runtime_utils.py; module hooks do not exist in C++.
#ifndef TESSERA_TORCH_SHARDED_MODEL_H_
#define TESSERA_TORCH_SHARDED_MODEL_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/session.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera {

struct ModuleUnits;

// Whole parameters in the hands of the user's code, between steps:
//
//   sharded->SummonFullParams({}, [&] {
//     torch::NoGradGuard no_grad;
//     model->head->weight.mul_(0.5);          every parameter is a plain tensor, whole, in full
//     return absl::OkStatus();
//   });                                       set on all ranks or on none
//
// Trainers map the job's parameters read-only, so the body works on a private copy of the shards'
// full values; of what it leaves, each rank's own slice is written back. Units that were readable
// before stay so. The memory of the copy is that of the chosen units, on every rank that gets one.
//
// Collective: all ranks call it with the same options, at the same place. A process that dies
// meanwhile goes unnoticed; only one that dies just when a call without writeback ends may leave
// ranks at different places, which they are told by name.
// Source: rules as torch/distributed/fsdp/_unshard_param_utils.py. Differences: with
// writeback = false nothing persists, in a world of one neither; writing back inside of RunStep is
// refused, since a step that is undone could not undo it.
struct SummonOptions {
  // The units at and below it; null: the root.
  const torch::nn::Module* module = nullptr;
  bool recurse = true;          // False: the unit `module` alone.
  bool writeback = true;        // False: what the body changes is forgotten.
  bool rank0_only = false;      // Other ranks' parameters stay as they are: not readable.
  bool offload_to_cpu = false;  // On the host they are there anyway.
  // Also the reduced gradients (the mean over the ranks), as grad(); undefined where this rank gave
  // none. Written back as well: each rank's own slice, and whether there is one. A unit of which
  // some rank has a gradient then is written by all of them.
  bool with_grads = false;
};

class ShardedModel {
 public:
  // `options.model` is filled in from the module: the root, and each Sharded<> that `policy`
  // chooses, is a unit (units.h). Dtypes that attach.precision names replace
  // options.config's.
  // Errors: as PlanUnits (units.h) and Session::Open.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Attach(
      std::shared_ptr<torch::nn::Module> root, SessionOptions options,
      const WrapPolicy& policy = AlwaysWrap(), const AttachOptions& attach = {});
  virtual ~ShardedModel() = default;

  virtual Session& session() = 0;
  int64_t next_step() { return session().next_step(); }

  // As Session::RunStep. An exception of the body becomes a status: its own if it carries one, else
  // Unknown with its text, or with its type where it is not a std::exception.
  virtual absl::Status RunStep(const std::function<absl::Status()>& step_body) = 0;

  // As Session::Step.
  virtual absl::StatusOr<StepResult> StepWithResult(const StepOptions& options) = 0;
  absl::StatusOr<StepResult> StepWithResult(double learning_rate_scale = 1.0) {
    StepOptions options;
    options.learning_rate_scale = learning_rate_scale;
    return StepWithResult(options);
  }
  absl::Status Step(double learning_rate_scale = 1.0) {
    return StepWithResult(learning_rate_scale).status();
  }

  // As Session::ClipGradNorm, in place of torch::nn::utils::clip_grad_norm_: after the last
  // backward of a step, on all ranks.
  virtual absl::StatusOr<double> ClipGradNorm(double max_norm, double p = 2.0,
                                              const StepOptions& options = {}) = 0;

  // Takes in what the user put in place of parameters and gradients. StepWithResult begins with it,
  // and so does every other way to step (shard_optimizer.h).
  virtual absl::Status PrepareStep() = 0;

  // Runs `body` with whole parameters; see SummonOptions. Errors of the body are every rank's, as in
  // RunStep, and nothing is written then.
  // Errors: FailedPrecondition  in forward or backward, or nested; writeback within RunStep; the
  //                             body left a parameter of another shape
  //         Aborted             a process died while gradients of a step under way were there
  //         InvalidArgument     no unit is at or below options.module
  //         Unimplemented       rank0_only with writeback; offload_to_cpu with with_grads, or where
  //                             the strategy shards nothing
  //         others              Session::ReadParameters
  virtual absl::Status SummonFullParams(const SummonOptions& options,
                                        const std::function<absl::Status()>& body) = 0;

  // When `module`'s forward (or backward) begins, the parameters of these are asked for too, in
  // this order, and not those of the unit that config.forward_prefetch (backward_prefetch) says; an
  // empty list undoes it. All ranks set the same. A wrong choice costs an
  // unshard that nobody needed, and its memory until the end of backward.
  // Errors: InvalidArgument  some module is not a unit of this model.
  using Modules = std::vector<const torch::nn::Module*>;  // Not owned.
  virtual absl::Status SetForwardPrefetch(const torch::nn::Module& module,
                                          const Modules& ahead) = 0;
  virtual absl::Status SetBackwardPrefetch(const torch::nn::Module& module,
                                           const Modules& ahead) = 0;

  // As Session::RegisterCommHook, of all units or of `module` alone.
  // Errors: also InvalidArgument  `module` is not a unit of this model.
  absl::Status RegisterCommHook(CommHook hook) {
    return session().RegisterCommHook(std::move(hook));
  }
  virtual absl::Status RegisterCommHook(const torch::nn::Module& module, CommHook hook) = 0;

  // Whether backward reduces the gradients of the units at and below `module` (of `module` alone
  // without `recurse`). Where it does not, they accumulate on this rank, and the next backward that
  // does, or else the step, reduces them with its own. That needs config.gradient_slots = 0, and
  // SHARD_GRAD_OP keeps parameters that were accumulated for unsharded after backward. All ranks
  // say the same, not during forward or backward.
  // Errors: InvalidArgument  no such unit.
  virtual absl::Status SetRequiresGradientSync(bool sync, const torch::nn::Module& module,
                                               bool recurse = true) = 0;

  // Whether the units at and below `module` (`module` alone without `recurse`) are resharded after
  // forward, from the next one on, whatever their strategy says; the root too, which stays else.
  // NO_SHARD units stay whole. A unit that is resharded is asked for again in backward; one that is
  // kept is not. Slices of other hosts leave the memory with a window, and travel again for the
  // next, only of FULL_SHARD units, so a job that wants the choice has that strategy. All ranks say
  // the same, not during forward or backward: it changes the order of execution.
  // Errors: InvalidArgument  no such unit.
  virtual absl::Status SetReshardAfterForward(bool reshard, const torch::nn::Module& module,
                                              bool recurse = true) = 0;

  // While one lives, no unit's gradients are reduced. Then it is as it was before.
  class NoSync {
   public:
    explicit NoSync(ShardedModel* model) : model_(model), before_(model->ExchangeSync({})) {}
    ~NoSync() { model_->ExchangeSync(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    ShardedModel* const model_;
    const std::vector<bool> before_;
  };
  // By unit; units that `sync` does not reach are not reduced. Returns what it was.
  virtual std::vector<bool> ExchangeSync(std::vector<bool> sync) = 0;

  // While one lives, buffers have the dtypes that they had before attaching, as a saved model
  // should. Around no forward.
  class OriginalBuffers {
   public:
    explicit OriginalBuffers(ShardedModel* model)
        : model_(model), before_(model->UseOriginalBuffers(true)) {}
    ~OriginalBuffers() { model_->UseOriginalBuffers(before_); }
    OriginalBuffers(const OriginalBuffers&) = delete;
    OriginalBuffers& operator=(const OriginalBuffers&) = delete;

   private:
    ShardedModel* const model_;
    const bool before_;
  };
  virtual bool UseOriginalBuffers(bool original) = 0;  // Returns what it was.

  // --- For what reads and sets the model's state as a whole ---
  virtual const torch::nn::Module& root() const = 0;
  virtual const ModuleUnits& units() const = 0;
  // Errors: FailedPrecondition  `what` cannot be: in forward or backward, or while parameters are
  //                             summoned.
  virtual absl::Status CheckIdle(absl::string_view what) const = 0;
  virtual bool in_step() const = 0;  // Within RunStep.
};

}  // namespace tessera

#endif  // TESSERA_TORCH_SHARDED_MODEL_H_
