// Checkpoints of an attached model (client/include/tessera/checkpoint.h), between steps. What is the trainer's
// own of it, buffers and ignored parameters, is in them as in all saves of its session.
//
//   SaveModelCheckpoint(sharded.get(), "/checkpoints/gpt/step-100", my_position_in_the_data);
//   ...
//   auto loaded = *LoadModelCheckpoint(sharded.get(), "/checkpoints/gpt/step-100");
//   loaded.trainer_state == my_position_in_the_data
//
// Rank 0's buffers and ignored parameters are saved, in the dtype that they had before attaching,
// and each rank gets them back. What an optimizer of the trainer's own remembers is not in it: see
// shard_checkpoint.h. Collective, between steps; one thread, the trainer's.
#ifndef TESSERA_CLIENT_TORCH_MODEL_CHECKPOINT_H_
#define TESSERA_CLIENT_TORCH_MODEL_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/sharded_model.h"
#include "tessera/checkpoint.h"

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

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MODEL_CHECKPOINT_H_
