// The windows in which units' parameters may be read: opened for the trainer, gathered ahead of it
// in the recorded order, closed.
//
//   recorded order ── GatherAhead ──► gathered ── Unshard ──► open ── Reshard ──► closed
//
// An unshard waits for the peers' versions and copies nothing where all ranks are on one host;
// RemoteSlices brings what other hosts have, and SlotTable says which unit has a GPU's slot.
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_UNIT_GATHERS_H_
#define TESSERA_WORKER_ENGINE_UNIT_GATHERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/gradient_reductions.h"
#include "worker/engine/order_tracker.h"
#include "worker/engine/remote_slices.h"
#include "worker/engine/slot_table.h"

namespace tessera {

class UnitGathers {
 public:
  // Both outlive this.
  UnitGathers(EngineContext* context, GradientReductions* reductions);

  // The epoch begins: all units are sharded.
  void Start();

  // Errors: FailedPrecondition  naming the unit: no initial values, it is unsharded, or another
  //                             unit's window has its slot
  //         InvalidArgument     no such unit, or event
  //         DeadlineExceeded    a peer has not published in time, or a GPU still reads the slot
  absl::Status Unshard(int unit, bool full_precision);
  absl::Status Reshard(const Op& op);
  // A forward ended that no backward follows.
  absl::Status EndForward();
  // Gathers what the record says comes next, so that the trainer will not wait for it.
  absl::Status GatherAhead();

  // The trainer may open nothing without asking; what was gathered ahead stays.
  void CloseGathered();
  // The parameters are about to change: the trainer may no longer read without waiting what was
  // gathered ahead. After a step, all ranks have closed their windows before they voted.
  void ParametersChange(bool windows_are_closed);
  // Once version `step` is whole: units whose parameters were written, which the trainer may have
  // open, are brought up to it. `written`: by unit.
  absl::Status Refresh(int64_t step, const std::vector<bool>& written);
  // Until all ranks of this host have published version `step`.
  absl::Status AwaitPeersAt(int64_t step);
  // Among ranks that have each of the unit's slices once.
  Communicator& Holders(int unit) const;

 private:
  // Makes the unit readable in full: each rank copies its shard, once a step and only if asked to.
  absl::Status PublishFullPrecision(int unit);
  // Before the unit's slot is filled. Errors: FailedPrecondition  a window on another unit has it.
  absl::Status TakeSlot(int unit);
  void DropAhead(int unit);
  UnitWords& WordsOf(int unit) { return context_.options.control->units[unit]; }

  EngineContext& context_;
  GradientReductions& reductions_;
  RemoteSlices remote_;
  SlotTable slots_;
  GatherLimit limit_;
  std::vector<int> upcoming_;  // Of GatherAhead; kept so that steady steps allocate nothing.
  // By unit: of which step it is readable in full precision; -1: none.
  std::vector<int64_t> full_precision_at_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_UNIT_GATHERS_H_
