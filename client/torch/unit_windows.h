// When the units of an attached model are readable, and what becomes of their gradients: all that
// happens around forwards and in backward.
//
//   forward    PreForward ─► open ─► PostForward ─► closed, where the strategy says so
//              (of a unit of several modules: of the first one ... of the last one)
//   backward   gradient of an output ─► open ─► gradients of all parameters ─► reduced
//                                               those of the inputs too     ─► closed
//   its end    what is left over is reduced and closed
//
// Confined to the thread that trains, whose backward runs on it too. Session, units and root
// outlive this. Methods that UnitObserver does not have throw as it does, if they return no status.
// Source: hook points as torch/distributed/fsdp/_runtime_utils.py.
#ifndef TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_
#define TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/session.h"
#include "client/torch/forward_group.h"
#include "client/torch/module_units.h"
#include "client/torch/prefetch_plan.h"
#include "client/torch/sharded.h"
#include "client/torch/unit_gradients.h"
#include "client/torch/unit_precision.h"
#include "client/torch/window_rules.h"

namespace tessera {

void ThrowIfError(const absl::Status& status);

class UnitWindows : public UnitObserver {
 public:
  // Sets whole parameters of a module, for WithFullParameters.
  using Summon =
      std::function<absl::Status(const torch::nn::Module&, const std::function<void()>& body)>;

  // Nothing is owned. Gives the parameters the session's memory, and attaches the modules.
  UnitWindows(Session* session, ModuleUnits* units, const torch::nn::Module* root,
              bool full_precision_in_eval, Summon summon);
  // Detaches the modules, and leaves each parameter empty.
  ~UnitWindows() override;
  UnitWindows(const UnitWindows&) = delete;
  UnitWindows& operator=(const UnitWindows&) = delete;

  PrefetchPlan& prefetch() { return prefetch_; }
  UnitPrecisions& precisions() { return precisions_; }
  WindowRules& rules() { return rules_; }
  bool in_forward() const { return forward_depth_ > 0; }
  bool in_backward() const { return in_backward_; }
  // While the user sees whole parameters no forward can be.
  bool summoned() const { return summoned_; }
  void set_summoned(bool summoned) { summoned_ = summoned; }

  // Takes in what the user put in place of parameters since the last look.
  absl::Status TakeReplaced();
  // After whatever may have changed a parameter's dtype: libtorch then makes new accumulators.
  void HookUnit(int unit);
  // No forward that began will go on, and nothing waits for a backward: before a step, ...
  void BeginStep();
  // ... and before a step's body runs, perhaps again: gradients are dropped too.
  void Forget();

  void PreForward(int unit) override;
  std::optional<torch::ScalarType> InputDType(int unit) override {
    return precisions_.InputDType(unit);
  }
  bool CastsResultBack(int unit) override {
    return unit != ShardedBase::kRootWithoutUnit && units_->casts_results_back[unit];
  }
  void WatchInput(int unit, const torch::Tensor& input) override;
  void WatchOutput(int unit, const torch::Tensor& output) override;
  void PostForward(int unit, int member) override;
  void WithFullParameters(const torch::nn::Module& module,
                          const std::function<void()>& body) override {
    ThrowIfError(summon_(module, body));
  }

 private:
  struct UnitBackward {
    int inputs_left = 0;          // Inputs, of any forward, whose gradient is still to come.
    int parameters_ready = 0;     // Whose gradient came in this backward.
    bool gradients_done = false;  // All of its parameters that have some.
  };

  void BeginRootForward();
  void EndRootForward();
  void ForgetForwards();
  void ForgetBackward();
  // Makes the unit's parameters readable in this precision, and the module use that.
  void OpenWindow(int unit, Precision precision);
  absl::Status Reshard(int unit);
  // Asks for the parameters of those of `units` that are sharded.
  void AskFor(const std::vector<int>& units, bool for_forward);
  // `use`, `precision`: of the forward that backward goes through.
  void PreBackward(int unit, const PrefetchPlan::Use& use, Precision precision);
  int Trainable(int unit) const;  // Parameters.
  void OnParameterGradient(int unit, int parameter);
  void OnUnitGradient(int unit);
  void MaybeReshard(int unit);
  void EndOfBackward();

  // Autograd runs hooks on a thread for each device, and forwards that are computed again on those
  // too; whoever is called so holds it. Backward has ended when the training thread goes on,
  // but after an exception.
  absl::Mutex mu_;
  Session* const session_;
  ModuleUnits* const units_;
  const torch::nn::Module* const root_;
  const bool full_precision_in_eval_;
  const Summon summon_;
  UnitPrecisions precisions_;
  PrefetchPlan prefetch_;
  WindowRules rules_;
  // By unit and parameter; keep the hooks alive.
  std::vector<std::vector<std::shared_ptr<torch::autograd::Node>>> accumulators_;
  bool in_backward_ = false;
  int forward_depth_ = 0;  // Of modules' forwards that are under way.
  bool summoned_ = false;
  std::vector<ForwardGroup> forwards_;  // By unit.
  std::vector<UnitBackward> backward_;
  UnitGradients gradients_;
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // For hooks in graphs that outlive this.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_
