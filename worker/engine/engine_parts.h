// The parts of a rank's engine that its operations share: steps, writes, saves and loads.
// rank_engine.h owns them; all of them outlive the operations.
#ifndef TESSERA_WORKER_ENGINE_ENGINE_PARTS_H_
#define TESSERA_WORKER_ENGINE_ENGINE_PARTS_H_

#include "worker/engine/early_updates.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/gradient_reductions.h"
#include "worker/engine/put_applier.h"
#include "worker/engine/state_versions.h"
#include "worker/engine/unit_gathers.h"

namespace tessera {

struct EngineParts {
  EngineContext& context;
  EarlyUpdates& early;
  GradientReductions& reductions;
  UnitGathers& gathers;
  StateVersions& versions;
  PutApplier& puts;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_ENGINE_PARTS_H_
