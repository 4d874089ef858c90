// All ranks of a group read a stored model, each the elements that it holds.
// Collective: every rank calls it at the same point of its order. Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_MODEL_LOAD_H_
#define TESSERA_WORKER_EXECUTOR_MODEL_LOAD_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/model_layout.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/load_plan.h"

namespace tessera {

// `path`: whatever OpenModel takes. Reads into `state` what the model has for each of the rank's
// segments that the rules, the same on all ranks, do not leave out; a job's first values need all.
// `plan` says what is missing and unexpected. Given up between two segments once `stopped`, with
// Aborted. `outcome` becomes the same on every rank:
// OK once all ranks have read, from files that nobody changed meanwhile, else what JoinOutcomes
// (agreement.h) says of them. Errors: the communicator's, where the ranks could not agree;
// `outcome` means nothing then.
absl::Status LoadModel(const std::string& path, const LoadRules& rules, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, LoadedState* state,
                       Communicator* communicator, const std::atomic<bool>* stopped, LoadPlan* plan,
                       absl::Status* outcome);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_MODEL_LOAD_H_
