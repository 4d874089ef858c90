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
// it. `outcome` becomes the same on every rank: OK once the file or folder has its name and is
// durable, else what JoinOutcomes (agreement.h) says of them; then what had the name, if
// anything, is as before. Errors: the communicator's, where the ranks could not agree; `outcome`
// means nothing then.
absl::Status SaveModel(const v1::SaveRequest& request, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const SavedState& state,
                       Communicator* communicator, const std::atomic<bool>* stopped,
                       int64_t direct_write_bytes, absl::Status* outcome);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_MODEL_SAVE_H_
