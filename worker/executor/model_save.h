// All ranks of a group write one consolidated model file, each the elements that it owns.
// Collective: every rank calls it at the same point of its order. Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_MODEL_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_MODEL_SAVE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/model_layout.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"

namespace tessera {

// `segments` are those that the rank writes. `outcome` becomes the same on every rank: OK once the
// file has its name and is durable, else the first failing rank's error with its number; then the
// file of that name, if there was one, is as before.
// Errors: the communicator's, where the ranks could not agree; `outcome` means nothing then.
absl::Status SaveModel(const std::string& path, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const SavedState& state,
                       Communicator* communicator, absl::Status* outcome);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_MODEL_SAVE_H_
