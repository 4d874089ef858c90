// For how long a unit's parameters stay unsharded, and whether backward reduces its gradients: what
// its strategy says, or what the trainer has said since. Pure logic; thread-compatible.
//
//   rule                      after forward               after backward
//   resharded after forward   resharded; the root stays   resharded
//   kept                      stays                       resharded if its gradients were reduced
//   NO_SHARD                  stays                       stays
//
// The root is needed first in backward, so it stays unless the trainer says that it is resharded.
// Source: reshard_after_forward, set_reshard_after_forward and set_requires_gradient_sync of
// torch/distributed/fsdp, fully_shard.
#ifndef TESSERA_CLIENT_UNITS_WINDOW_RULES_H_
#define TESSERA_CLIENT_UNITS_WINDOW_RULES_H_

#include <vector>

#include "layout/model_layout.h"

namespace tessera {

class WindowRules {
 public:
  // `root`: which unit is; -1: none.
  WindowRules(const std::vector<UnitLayout>& units, int root);

  // From the unit's next forward on; of NO_SHARD it changes nothing.
  void SetReshardAfterForward(int unit, bool reshard);
  void SetSync(int unit, bool sync) { sync_[unit] = sync; }
  // By unit; those that `sync` does not reach are not reduced. Returns what it was.
  std::vector<bool> ExchangeSync(std::vector<bool> sync);

  bool Syncs(int unit) const { return sync_[unit]; }
  bool ReshardsAfterForward(int unit) const;
  bool ReshardsAfterBackward(int unit) const;

 private:
  std::vector<Strategy> strategies_;   // By unit, as all of these.
  std::vector<bool> reshard_forward_;  // The rule, whether or not it is the root.
  std::vector<bool> sync_;
  const int root_;
  bool root_was_told_ = false;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_WINDOW_RULES_H_
