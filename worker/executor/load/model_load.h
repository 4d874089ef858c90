// All ranks of a group read a stored model, each the elements that it holds.
// Collective: every rank calls it at the same point of its order. Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_MODEL_LOAD_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_MODEL_LOAD_H_

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "layout/model_layout.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/load/load_plan.h"

namespace tessera {

// `path`: whatever OpenModel takes. Reads into `state` what the model has for each of the rank's
// segments that the rules, the same on all ranks, do not leave out; a job's first values need all.
// The reply says what is missing and unexpected; it comes once all ranks have read, from files that
// did not change meanwhile. Given up between two segments once `stopped`, with Aborted.
// Errors: agreed ones (agreed_error.h), which are what JoinOutcomes (agreement.h) says of the ranks;
// the communicator's.
//
// `buffers`: the trainer's own tensors, which it gets by the reply; those that are of the layout's
// buffers, as they are there, go into the state too.
absl::StatusOr<v1::LoadReply> LoadModel(const std::string& path, const LoadRules& rules,
                                        const std::vector<NamedTensorInfo>& buffers,
                                        const ModelLayout& layout,
                                        const std::vector<ShardSegment>& segments,
                                        LoadedState* state, Communicator* communicator,
                                        const std::atomic<bool>* stopped);

using BufferNumbers = std::unordered_map<std::string, int>;  // By name.
BufferNumbers NumbersOf(const ModelLayout& layout);
// If the layout has a buffer like this one, the state gets its values: for readers of the live
// state right after the load, and for the successor of a trainer that dies before it has taken
// them.
void KeepInState(const v1::NamedTensor& loaded, const ModelLayout& layout,
                 const BufferNumbers& numbers, LoadedState* state);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_MODEL_LOAD_H_
