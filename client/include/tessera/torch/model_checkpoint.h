// Checkpoints of an attached model (checkpoint.h), between steps. What is the trainer's
// own of it, buffers and ignored parameters, is in them as in all saves of its session.
//
//   SaveModelCheckpoint(sharded.get(), "/checkpoints/gpt/step-100", my_position_in_the_data);
//   ...
//   auto loaded = *LoadModelCheckpoint(sharded.get(), "/checkpoints/gpt/step-100");
//   loaded.trainer_state == my_position_in_the_data
//
// Rank 0's buffers and ignored parameters are saved, in the dtype that they had before attaching,
// and each rank gets them back. What an optimizer of the trainer's own remembers is not in it: see
// below. Collective, between steps; one thread, the trainer's.
#ifndef TESSERA_TORCH_MODEL_CHECKPOINT_H_
#define TESSERA_TORCH_MODEL_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"
#include "tessera/torch/shard_optimizer.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// Errors: InvalidArgument     a buffer is of a dtype that files do not have, named
//         FailedPrecondition  within RunStep, or in forward or backward; others  SaveCheckpoint.
absl::Status SaveModelCheckpoint(ShardedModel* model, const std::string& path,
                                 const std::string& trainer_state = "",
                                 const SaveOptions& options = {});

// As OnSaveRequest, for a model. `trainer_state`, if not null, gives the rank's own bytes.
void OnModelSaveRequest(
    ShardedModel* model,
    std::function<absl::StatusOr<std::string>(int64_t step)> trainer_state = nullptr);

struct LoadModelCheckpointOptions {
  bool strict = true;           // As LoadCheckpointOptions.
  bool model_only = false;      // The same.
  NameSelection names;          // The same.
  bool optimizer_only = false;  // The same: the module's buffers stay too.
};

// What is returned has no buffers: they are in the module.
// Errors: as SaveModelCheckpoint and LoadCheckpoint.
absl::StatusOr<LoadedCheckpoint> LoadModelCheckpoint(
    ShardedModel* model, const std::string& path, const LoadModelCheckpointOptions& options = {});

// --- With an optimizer of the trainer's own ---
//
// Checkpoints of a model that a trainer's own optimizer trains (shard_optimizer.h), including that
// optimizer's state, in the same form as for the job's own optimizer.
//
//   SaveModelCheckpoint(sharded.get(), own.get(), "/checkpoints/gpt/step-100", position);
//   ... another world, other units, a new ShardOptimizer ...
//   LoadModelCheckpoint(sharded.get(), own.get(), "/checkpoints/gpt/step-100");
//
// The job has room for moments, as config.optimizer says, which steps of the trainers do not
// change. StoreOptimState writes the optimizer's moments there, and TakeOptimState reads them back.
// Everything that reads or writes the job's state then includes them (checkpoints, live reads,
// puts, hand-overs), as of the last StoreOptimState.
//
// libtorch's Adam and AdamW where config.optimizer is kAdam or kAdamW, SGD where it is kSgd;
// without amsgrad. Numbers of groups (rates, betas) are the program's. Collective; confined to the
// thread that trains.

// On all ranks or on none; counts as a write of the trainers (Session::num_writes), also where it
// is part of a save below. Each rank writes its own slices: nothing is gathered. Between steps, or
// after one within RunStep.
// Errors, every rank's:
//   InvalidArgument     the job has no such moments; a parameter of the optimizer is not a shard
//   FailedPrecondition  the ranks' optimizers have state of other parameters; in forward or
//                       backward
//   Aborted             within RunStep alone
//   as OptimStateOf
absl::Status StoreOptimState(ShardedModel* model, ShardOptimizer* own);

// Replaces all of the optimizer's state by the job's. A parameter that was never updated has none.
// Between steps. Memory: a unit's moments at a time, in the unit's gradient slot.
// Errors, every rank's:
//   InvalidArgument     the optimizer wants moments that the job does not have
//   FailedPrecondition  within a step
absl::Status TakeOptimState(ShardedModel* model, ShardOptimizer* own);

// As above, with StoreOptimState before, or TakeOptimState after (unless model_only).
// A load that ended with Aborted may have taken effect, as num_writes() tells: the other ranks are
// in TakeOptimState then, and wait for this one's call.
absl::Status SaveModelCheckpoint(ShardedModel* model, ShardOptimizer* own, const std::string& path,
                                 const std::string& trainer_state = "",
                                 const SaveOptions& options = {});
absl::StatusOr<LoadedCheckpoint> LoadModelCheckpoint(
    ShardedModel* model, ShardOptimizer* own, const std::string& path,
    const LoadModelCheckpointOptions& options = {});
// `own` outlives the session.
void OnModelSaveRequest(
    ShardedModel* model, ShardOptimizer* own,
    std::function<absl::StatusOr<std::string>(int64_t step)> trainer_state = nullptr);

}  // namespace tessera

#endif  // TESSERA_TORCH_MODEL_CHECKPOINT_H_
