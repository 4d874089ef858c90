// The units of an attached model as libtorch uses them: tells a UnitDriver of forwards and of what
// autograd runs, and gives gradients to the session.
//
// Each node of a graph that a unit's forward made opens the unit before it runs. Nodes are found
// when a backward begins, whatever way leads to them: results, members, views changed in place,
// gradients of gradients.
//
// Confined to the thread that trains, whose backward runs on it too. Session, units and root
// outlive this. Methods throw StatusException, if they return no status.
// Source: hook points as torch/distributed/fsdp/_runtime_utils.py.
#ifndef TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_
#define TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/torch/autograd_engine.h"
#include "client/torch/kept_gradient.h"
#include "client/torch/module_units.h"
#include "client/torch/unit_gradients.h"
#include "client/torch/unit_precision.h"
#include "client/units/node_owners.h"
#include "client/units/session_units.h"
#include "client/units/unit_driver.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"

namespace tessera {

void ThrowIfError(const absl::Status& status);

class UnitWindows : public UnitObserver, private BackwardObserver, private SessionUnits {
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

  PrefetchPlan& prefetch() { return driver_.prefetch(); }
  UnitPrecisions& precisions() { return precisions_; }
  WindowRules& rules() { return driver_.rules(); }
  bool in_forward() const { return driver_.in_forward(); }
  bool in_backward() const { return driver_.in_backward(); }
  // While the user sees whole parameters no forward can be.
  bool summoned() const { return summoned_; }
  void set_summoned(bool summoned) { summoned_ = summoned; }

  // Takes in what the user put in place of parameters since the last look.
  absl::Status TakeReplaced();
  KeptGradients& kept_gradients() { return kept_gradients_; }
  // A step is about to be made, ...
  void BeginStep();
  // ... and before a step's body runs, perhaps again: gradients are dropped.
  void DropGradients();

  void PreForward(int unit) override;
  std::optional<torch::ScalarType> InputDType(int unit) override {
    return precisions_.InputDType(unit);
  }
  bool CastsResultBack(int unit) override {
    return unit != ShardedBase::kRootWithoutUnit && units_->casts_results_back[unit];
  }
  void PostForward(int unit, int member) override;
  void AbandonForward() override;
  void ZeroGradients(int unit) override;
  void WithFullParameters(const torch::nn::Module& module,
                          const std::function<void()>& body) override {
    ThrowIfError(summon_(module, body));
  }

 private:
  class BeforeNode;
  class AfterNode;
  class BeforeAccumulation;
  class AfterAccumulation;
  using ParameterIndex = std::pair<int, int>;  // Unit and parameter.

  // Of BackwardObserver.
  bool BeginBackward(const std::vector<torch::autograd::Node*>& nodes) override;
  void EndBackward(bool failed) override;
  // Of SessionUnits.
  Precision WantedPrecision(int unit) const override { return precisions_.Wanted(unit); }
  void UseParameters(int unit, Precision precision) override {
    precisions_.UseParameters(unit, precision);
  }
  void FollowUses(int unit) override;
  absl::Status HandOverGradients(int unit) override { return gradients_.Flush(unit); }

  absl::string_view NameOf(int unit) const {
    return unit < 0 ? absl::string_view() : units_->model.units[unit].name;
  }
  // Errors: FailedPrecondition  another thread is in a forward or backward of the model.
  absl::Status CheckThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginModelForward();
  void EndModelForward();
  void IndexParameters(int unit);
  // What the node will need, with hooks to see that it has it.
  void AddWork(torch::autograd::Node* node, UnitDriver::BackwardWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(nodes_mu_);
  void BeginOwnNodes(std::shared_ptr<const UnitForward> forward);
  void EndOwnNodes();
  // Called by hooks, on whichever thread runs the node.
  void BeginNode(const std::shared_ptr<const UnitForward>& forward);
  void EndNode(const UnitForward& forward);
  void BeforeParameterGradient(int unit, int parameter);
  void OnParameterGradient(int unit, int parameter);
  absl::Status TakeGradient(int unit, int parameter);

  // Held by each call of a hook or a forward: autograd runs hooks, and forwards that it computes
  // again, on one thread for each device. Between forwards and backwards the driver needs no lock.
  absl::Mutex mu_;
  ModuleUnits* const units_;
  const torch::nn::Module* const root_;
  const bool full_precision_in_eval_;
  const Summon summon_;
  UnitPrecisions precisions_;
  UnitGradients gradients_;
  KeptGradients kept_gradients_;
  UnitDriver driver_;
  bool summoned_ = false;
  // The backwards of other models' threads ask whose a node is; nobody waits while holding it.
  absl::Mutex nodes_mu_;
  absl::flat_hash_map<const c10::TensorImpl*, ParameterIndex> parameters_
      ABSL_GUARDED_BY(nodes_mu_);
  NodeOwners owners_ ABSL_GUARDED_BY(nodes_mu_);
  std::atomic<uint64_t> thread_;  // That trains.
  // That run, the innermost last.
  std::vector<std::shared_ptr<UnitForward>> forwards_ ABSL_GUARDED_BY(mu_);
  // Of the backwards under way, at their begin.
  std::vector<NodeOwners::Depths> depths_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // For hooks in graphs that outlive this.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_WINDOWS_H_
