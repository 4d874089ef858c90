// What the parts of a rank's engine share: the memory and tools that it is given, the place in the
// order, the states of units, and why to stop.
//
// Confined to the engine's thread, except for `interrupt`, what is constant, and what says that the
// post-backward stream uses it too.
#ifndef TESSERA_WORKER_ENGINE_ENGINE_CONTEXT_H_
#define TESSERA_WORKER_ENGINE_ENGINE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/epoch_interrupt.h"
#include "worker/engine/operation_order.h"
#include "worker/engine/rank_engine_options.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/engine/trainer_link.h"
#include "worker/engine/unit_state.h"

namespace tessera {

class EngineContext {
 public:
  explicit EngineContext(RankEngineOptions options);

  // --- Units ---
  int num_units() const { return static_cast<int>(options.layout->units.size()); }
  // Errors: InvalidArgument  there is no such unit.
  absl::Status CheckUnit(int unit) const;
  const std::string& UnitName(int unit) const { return UnitOf(unit).flat.unit_name(); }
  const UnitLayout& UnitOf(int unit) const { return options.layout->units[unit]; }
  const UnitMemory& MemoryOf(int unit) const { return options.memory->units()[unit]; }
  DType FullDTypeOf(int unit) const { return MemoryOf(unit).full_dtype; }
  int64_t FullBytes(int unit, int64_t elements) const {
    return elements * SizeBytes(FullDTypeOf(unit));
  }
  // Whether another rank has the same slice of the unit, and counts for both.
  bool IsReplica(int unit) const { return UnitOf(unit).shards.IsReplica(options.rank); }
  ElementRange SliceOf(int unit) const { return UnitOf(unit).shards.RangeOf(options.rank); }
  // Errors: FailedPrecondition  the unit's state has no such transition.
  absl::Status Transit(int unit, UnitEvent event);

  // --- The rank ---
  bool OnDevice() const { return options.device_gradients != nullptr; }
  int LocalIndex() const { return options.topology->LocalIndex(options.rank.value()); }
  RankRecord& record() const { return options.group->ranks[LocalIndex()]; }
  bool initialized() const { return options.control->initialized.load() != 0; }
  // The unit's gradient slot, which the trainer reads and writes.
  std::byte* OwnSlot(int unit) const;
  // Which of the trainer's parameters got a gradient since the last step, a byte each.
  std::byte* Touched() const;
  int64_t EnqueueRecord(OpKind kind, int unit, int64_t bytes) const {
    return options.recorder->Enqueued(order.step() + 1, order.sequence(), kind, unit, bytes);
  }

  const RankEngineOptions options;
  ShardedOptimizer optimizer;
  EpochInterrupt interrupt;  // Thread-safe.
  OperationOrder order;
  TrainerLink trainer;

 private:
  std::vector<UnitState> states_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_ENGINE_CONTEXT_H_
