// Drives the units of a model through forward and backward: it is told what the training
// framework does, and has a UnitHost open, close and reduce units.
//
//   forward    BeginForward ─► open ─► EndForward ─► closed, where the rules say so
//              (of a unit of several modules: of the first one ... of the last one)
//   backward   BeginBackward (what it is going to run)
//                BeginNode ─► open ─► EndNode
//                OnGradient            the unit's last one ─► reduced
//                                      and its last node   ─► closed
//              EndBackward                            what is left is reduced and closed
//
// window_state.h has the rule by which a unit is closed, window_rules.h for how long it stays, and
// prefetch_plan.h which units are asked for early. Backwards nest: one may begin inside of a
// forward, of a node of another one, and so may forwards.
//
// An error of the host is returned at once; what is under way then has ended. Thread-compatible.
// Source: torch/distributed/fsdp/_runtime_utils.py.
#ifndef TESSERA_CLIENT_UNITS_UNIT_DRIVER_H_
#define TESSERA_CLIENT_UNITS_UNIT_DRIVER_H_

#include <memory>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/units/forward_group.h"
#include "client/units/prefetch_plan.h"
#include "client/units/unit_forward.h"
#include "client/units/unit_host.h"
#include "client/units/window_rules.h"
#include "client/units/window_state.h"

namespace tessera {

class UnitDriver {
 public:
  static constexpr int kNoUnit = -1;  // The root, where it is not a unit.

  struct Options {
    std::vector<int> num_modules;  // By unit.
    int root = 0;                  // Which unit is; kNoUnit: none.
  };
  // What a backward is going to run of a unit.
  struct Work {
    int nodes = 0;      // Of graphs that its forwards made.
    int gradients = 0;  // Of its parameters.
  };
  using BackwardWork = absl::flat_hash_map<int, Work>;  // By unit.

  // `host` is not owned.
  UnitDriver(Options options, WindowRules rules, PrefetchPlan prefetch, UnitHost* host);

  WindowRules& rules() { return rules_; }
  PrefetchPlan& prefetch() { return prefetch_; }
  bool in_forward() const { return forwards_running_ > 0; }
  bool in_backward() const { return !backwards_.empty(); }
  // Whether the unit's forward, if it began now, would begin one of the whole model.
  bool BeginsModel(int unit) const { return unit == options_.root && !in_backward(); }

  // A module of the unit begins its forward. Not counted where opening failed.
  absl::StatusOr<std::shared_ptr<UnitForward>> BeginForward(int unit, Precision precision);
  // `module`: which of the unit's. Returns whether the whole model's forward has ended.
  absl::StatusOr<bool> EndForward(UnitForward* forward, int module);
  // An exception ended it. What it left open is closed where the next forward of the model begins.
  void AbandonForward(const UnitForward& forward);

  void BeginBackward(BackwardWork work);
  absl::Status BeginNode(const UnitForward& forward);
  absl::Status EndNode(const UnitForward& forward);
  // The gradient of one of the unit's parameters is about to be added, ...
  absl::Status MakeRoom(int unit);
  // ... and has been added, or there was none after all.
  absl::Status OnGradient(int unit);
  // `failed`: an exception ended it, perhaps on this rank alone: nothing is reduced or closed.
  absl::Status EndBackward(bool failed);

  // No unit of several modules is in the middle of its forward.
  void ForgetGroups();

 private:
  struct Unit {
    explicit Unit(int num_modules) : group(num_modules) {}
    WindowState state = WindowState::kIdle;
    ForwardGroup group;
    int forwards = 0;              // Of its modules, that run.
    int nodes = 0, gradients = 0;  // Left in the backwards under way.
  };

  absl::Status Take(int unit, WindowEvent event, Precision precision = Precision::kCompute);
  absl::Status OpenForForward(UnitForward* forward);
  absl::Status AskFor(const std::vector<int>& units, bool for_forward);
  // Where nothing of it is left in the backwards under way.
  absl::Status EndWork(int unit);
  absl::Status ReduceIfSynced(int unit);
  absl::Status CloseLeftOpen();

  const Options options_;
  WindowRules rules_;
  PrefetchPlan prefetch_;
  UnitHost* const host_;
  std::vector<Unit> units_;
  int forwards_running_ = 0;             // Of any module, outside of backward.
  std::vector<BackwardWork> backwards_;  // Under way, the innermost last: what they have left.
  std::set<int> touched_;                // Units that the outermost backward's end may close.
  std::set<int> left_open_;              // By an exception, perhaps.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_UNIT_DRIVER_H_
