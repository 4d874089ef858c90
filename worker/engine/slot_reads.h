// Whole parameters, moments and gradients for the trainer, and the trainers' own bytes among each
// other, by way of its gradient slots.
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_SLOT_READS_H_
#define TESSERA_WORKER_ENGINE_SLOT_READS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/gradient_reductions.h"
#include "worker/engine/unit_gathers.h"

namespace tessera {

class SlotReads {
 public:
  // All outlive this. `state_is_addressable`: communicators know the state's memory.
  SlotReads(EngineContext* context, GradientReductions* reductions, const UnitGathers* gathers,
            bool state_is_addressable)
      : context_(*context),
        reductions_(*reductions),
        gathers_(*gathers),
        state_is_addressable_(state_is_addressable) {}

  // Errors of all: InvalidArgument     no such unit or array
  //                FailedPrecondition  there are no values, or gradient; Aborted
  // Of all ranks: the unit's array or reduced gradient.
  absl::Status Read(const Op& op);
  // The rank's own shard, into its place in the unit's gradient slot.
  absl::Status ReadShard(const Op& op);
  // Bytes of the trainers', which mean nothing here.
  absl::Status Exchange(const Op& op);

 private:
  // Of what `op` reads: the rank's shard of it.
  absl::StatusOr<const std::byte*> ShardToRead(const Op& op, bool gradient) const;

  EngineContext& context_;
  GradientReductions& reductions_;
  const UnitGathers& gathers_;
  const bool state_is_addressable_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_SLOT_READS_H_
