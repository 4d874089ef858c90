// What a trainer's own optimizer on shards remembers, as a dictionary in memory, and back.
//
//   OptimStateDict dict = *GatherOptimState(sharded.get(), own.get());    whole, on every rank
//   ... another world or other units, a new ShardOptimizer ...
//   SetShardOptimState(dict, sharded.get(), own.get());
//
// libtorch's Adam, AdamW and SGD, whose one or more groups have the tensors of shards(). As
// OptimStateDict of FULL type: keyed by name, and other than the job's own optimizer's in nothing.
// last_step is not set: steps are the job's, and continue as they were. Collective, between steps;
// repeated where another rank's process dies. Memory: the whole dictionary.
#ifndef TESSERA_CLIENT_TORCH_SHARD_OPTIM_STATE_H_
#define TESSERA_CLIENT_TORCH_SHARD_OPTIM_STATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/optim_state_dict.h"
#include "client/torch/shard_optimizer.h"
#include "client/torch/sharded_model.h"

namespace tessera {

// Errors: as OptimStateOf, of any rank; FailedPrecondition  within a step, or the ranks'
//         optimizers have state of different parameters
absl::StatusOr<OptimStateDict> GatherOptimState(ShardedModel* model, ShardOptimizer* own);

// Each rank takes its own part of the same dictionary. On all ranks or on none, and one rank's
// error is every rank's. Errors: as SetOptimState, of any rank; FailedPrecondition  within a step
absl::Status SetShardOptimState(const OptimStateDict& dict, ShardedModel* model,
                                ShardOptimizer* own);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_SHARD_OPTIM_STATE_H_
