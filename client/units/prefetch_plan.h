// Which units a model asks for before it needs them. Pure logic; thread-compatible.
//
//   forward of u   u, then of its own list, or the unit after u in the record    forward_prefetch
//   backward of u  u, then of its own list, or the unit that ended before u       kPre
//                  u ... the gradients of u ... the unit that ended before u      kPost
//
// The record for forward is the order in which units began in the first whole forward of the root.
// That for backward is made again by each forward of the root: the order in which units ended, with
// repetitions; a graph that waits for its backward keeps the one that it was made with. A wrong
// guess costs an unshard that nobody needed, and memory until the end of backward.
//
// Source: torch/distributed/fsdp/_runtime_utils.py, _exec_order_utils.py (one unit ahead, when) and
// fully_shard (lists; order with repetitions).
#ifndef TESSERA_CLIENT_UNITS_PREFETCH_PLAN_H_
#define TESSERA_CLIENT_UNITS_PREFETCH_PLAN_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "job/job_config.h"

namespace tessera {

class PrefetchPlan {
 public:
  // One forward of a unit, as backward will come back to it.
  struct Use {
    std::shared_ptr<const std::vector<int>> ended;  // The units that ended before it, and more.
    size_t position = 0;                            // Its own place among them.
  };

  PrefetchPlan(BackwardPrefetch backward, bool forward, int num_units);

  // These take the place of what the job says, for this unit; empty: no longer.
  void SetForward(int unit, std::vector<int> ahead) { forward_lists_[unit] = std::move(ahead); }
  void SetBackward(int unit, std::vector<int> ahead) { backward_lists_[unit] = std::move(ahead); }

  // The root's forward begins, which is one of the whole model. Each of the others returns the
  // units to ask for now; some of them may be unsharded already.
  void BeginForward();
  std::vector<int> PreForward(int unit);
  // The forward of the unit that ends next; backward gives it back.
  Use NextUse() const { return {ended_, ended_->size()}; }
  void PostForward(int unit);
  // The root's forward ended.
  void EndForward();
  // The unit's last forward since the root's began, for one that is computed again in backward.
  Use LastUse(int unit) const;
  std::vector<int> PreBackward(int unit, const Use& use);
  std::vector<int> PostBackward(int unit);
  void EndBackward();

 private:
  std::vector<int> UnitBefore(const Use& use) const;

  const BackwardPrefetch backward_;
  const bool forward_;
  std::vector<std::vector<int>> forward_lists_;
  std::vector<std::vector<int>> backward_lists_;

  std::vector<int> began_;  // The record for forward.
  bool recorded_ = false;   // It is whole.
  std::vector<bool> forward_begun_;
  std::shared_ptr<std::vector<int>> ended_ = std::make_shared<std::vector<int>>();
  std::vector<Use> in_backward_;  // By unit: the use that is under way; none where `ended` is null.
  std::vector<bool> backward_begun_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_PREFETCH_PLAN_H_
