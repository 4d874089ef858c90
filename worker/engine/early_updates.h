// The optimizer in backward. Once a unit's gradient is reduced, the unit is updated with the numbers
// that are assumed for the step, into version v + 1, where nobody looks. If the decision differs from
// what was assumed, or the executor died, the update is computed again from version v and the reduced
// gradient, both of which stand.
//
// Update is the post-backward stream's. The rest is the engine's thread's, the stream being idle
// except during Announce, Assume and Plan.
#ifndef TESSERA_WORKER_ENGINE_EARLY_UPDATES_H_
#define TESSERA_WORKER_ENGINE_EARLY_UPDATES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "job/job_config.h"
#include "worker/engine/engine_context.h"

namespace tessera {

class EarlyUpdates {
 public:
  // `context` outlives this.
  explicit EarlyUpdates(EngineContext* context);

  // The trainer says which numbers the step under way will have. Errors: those of GroupsOf.
  absl::Status Announce(const Op& op);
  // What steps had last; the next one is assumed to have the same.
  void Assume(const std::vector<HyperParameters>& groups) { assumed_groups_ = groups; }

  struct Assumed {
    std::vector<int64_t>
        updates;  // By parameter of the unit: which of its updates this is; 0: none.
    std::vector<HyperParameters> groups;
  };
  // What is known now of the step's effect on the unit.
  Assumed Plan(int unit) const;
  // On the stream, after the reduction of the unit. `number` is the update's in the flight record.
  void Update(int unit, Assumed assumed, int64_t number);
  // Which units were updated with just these numbers, so that publishing is all that is left. Empty
  // where none ever is.
  std::vector<bool> MadeBy(const OptimizerStep& step) const;

  // The unit's reduced gradient changes, or is over.
  void Forget(int unit) { made_[unit].updates.clear(); }
  void ForgetAll();

 private:
  EngineContext& context_;
  std::vector<HyperParameters> assumed_groups_;  // Of the step under way.
  std::vector<Assumed> made_;                    // By unit; no updates: it was not updated.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_EARLY_UPDATES_H_
