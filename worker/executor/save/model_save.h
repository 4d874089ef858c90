// All ranks of a group write one model, each the elements that it owns: a file, or a folder of
// several with their index (checkpoint/safetensors/model_files.h).
// Collective: every rank calls it at the same point of its order. Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_MODEL_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_MODEL_SAVE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "layout/model_layout.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"

namespace tessera {

// `request`: checked, and the same on all ranks. `segments` are those that the rank writes. Given
// up between two of them once `stopped`, with Aborted; `direct_write_bytes`: as DirectWrites has
// it. OK once the file or folder has its name and is durable.
// Errors: agreed ones (agreed_error.h), which are what JoinOutcomes (agreement.h) says of the ranks:
// then what had the name, if anything, is as before; the communicator's.
absl::Status SaveModel(const v1::SaveRequest& request, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const SavedState& state,
                       Communicator* communicator, const std::atomic<bool>* stopped,
                       int64_t direct_write_bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_MODEL_SAVE_H_
