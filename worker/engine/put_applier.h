// Applies values that a process outside the job sets: as a version of the state of its own, right
// after a step, while no trainer reads parameters.
//
//   Offer ──► the rank's vote on a step ──► all ranks offered the same: Apply: stage, vote, decide
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_PUT_APPLIER_H_
#define TESSERA_WORKER_ENGINE_PUT_APPLIER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/state_versions.h"
#include "worker/engine/unit_gathers.h"

namespace tessera {

class PutApplier {
 public:
  // All outlive this.
  PutApplier(EngineContext* context, StateVersions* versions, UnitGathers* gathers)
      : context_(*context), versions_(*versions), gathers_(*gathers) {}

  // What this rank offers in its vote; 0: nothing.
  uint64_t Offer();
  // After that vote: applies what was offered, if all ranks offered it, else offers it again later.
  // `agreed`: the put that all offered; 0: none.
  absl::Status Apply(uint64_t offered, uint64_t agreed);

 private:
  // Puts it into the version to come, with what it leaves as it is.
  absl::Status Stage(int64_t next, std::optional<TrainingProgress>* loaded);
  absl::Status ReadBuffers(int64_t next);
  absl::Status Decide(int64_t next, StepNumbers numbers);

  EngineContext& context_;
  StateVersions& versions_;
  UnitGathers& gathers_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_PUT_APPLIER_H_
