// The slices of a checkpoint's tensors that a rank has in its state. Pure; thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SLICES_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SLICES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/save/slice_sums.h"

namespace tessera {

// A file of the checkpoint and a tensor in it.
using TensorKey = std::pair<std::string, std::string>;

struct CheckpointSlice {
  TensorKey tensor;
  StateArray array = StateArray::kParameter;
  ShardSegment segment;
};

// Of `rank`, in an order that every rank knows: of each of its segments the parameter and, where
// `has_state` says so by parameter of the job, the moments.
std::vector<CheckpointSlice> SlicesOf(const ExecutorMemory& memory, Rank rank,
                                      const std::vector<bool>& has_state);
// Without those that lower ranks have too.
std::vector<CheckpointSlice> SavedSlicesOf(const ExecutorMemory& memory, Rank rank,
                                           const std::vector<bool>& has_state);

// `of_rank`: gives each rank's slices; `sums`: by rank, their sums in the same order (more may
// follow); `element_bytes`: as the tensor is stored.
std::map<TensorKey, std::vector<SummedSlice>> SlicesByTensor(
    const std::function<std::vector<CheckpointSlice>(Rank)>& of_rank,
    const std::vector<SliceSums>& sums,
    const std::function<int64_t(const CheckpointSlice&)>& element_bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SLICES_H_
