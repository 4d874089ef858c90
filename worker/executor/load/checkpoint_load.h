// All ranks of a group read one checkpoint, each the elements that it holds, and check together
// that none is damaged. Collective: every rank calls it at the same point of its order.
// Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_H_

#include <atomic>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/executor_memory.h"

namespace tessera {

// Reads into `state` what the checkpoint has for each of the rank's segments: parameters and,
// unless the request is for the model only, moments, with where training stood. What the request,
// the same on all ranks, leaves out is not touched; training then stands where the job's does, and
// a job's first values need all. Given up between two slices once `stopped`, with Aborted.
// Replies once all ranks have read, of one checkpoint, what was saved.
// Errors: agreed ones (agreed_error.h), which are what JoinOutcomes (agreement.h) says of the ranks;
// the communicator's.
absl::StatusOr<v1::LoadReply> LoadCheckpoint(const v1::LoadRequest& request,
                                             const ExecutorMemory& memory, LoadedState* state,
                                             Communicator* communicator,
                                             const std::atomic<bool>* stopped);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_H_
