#include "worker/executor/save/checkpoint_slices.h"

#include <algorithm>

#include "checkpoint/manifest/manifest.h"
#include "worker/executor/save/checkpoint_plan.h"

namespace tessera {

std::vector<CheckpointSlice> SlicesOf(const ExecutorMemory& memory, Rank rank,
                                      const std::vector<bool>& has_state) {
  std::vector<CheckpointSlice> slices;
  for (const ShardSegment& segment : SegmentsOf(memory.layout, memory.config, memory.plan, rank)) {
    const UnitLayout& unit = memory.layout.units[segment.unit];
    const std::string& name = unit.flat.parameters()[segment.parameter].spec.name;
    slices.push_back({{std::string(kModelFileName), name}, StateArray::kParameter, segment});
    // A parameter without an update has no state in the file, as PyTorch's optimizers have none.
    if (!has_state[segment.job_parameter]) continue;
    for (const StateArray moment : MomentsOf(memory.config.optimizer)) {
      slices.push_back(
          {{std::string(kOptimizerFileName), MomentTensor(name, memory.config.optimizer, moment)},
           moment,
           segment});
    }
  }
  return slices;
}

std::vector<CheckpointSlice> SavedSlicesOf(const ExecutorMemory& memory, Rank rank,
                                           const std::vector<bool>& has_state) {
  std::vector<CheckpointSlice> slices = SlicesOf(memory, rank, has_state);
  const auto is_replica = [&](const CheckpointSlice& slice) {
    return memory.layout.units[slice.segment.unit].shards.IsReplica(rank);
  };
  slices.erase(std::remove_if(slices.begin(), slices.end(), is_replica), slices.end());
  return slices;
}

std::map<TensorKey, std::vector<SummedSlice>> SlicesByTensor(
    const std::function<std::vector<CheckpointSlice>(Rank)>& of_rank,
    const std::vector<SliceSums>& sums,
    const std::function<int64_t(const CheckpointSlice&)>& element_bytes) {
  std::map<TensorKey, std::vector<SummedSlice>> by_tensor;
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    const std::vector<CheckpointSlice> slices = of_rank(Rank(rank));
    // The sums came from other ranks. An index beyond a rank's slices is not trusted.
    for (size_t i = 0; i < slices.size() && i < sums[rank].size(); ++i) {
      const int64_t bytes = element_bytes(slices[i]);
      by_tensor[slices[i].tensor].push_back({slices[i].segment.parameter_begin_elements * bytes,
                                             slices[i].segment.numel * bytes,
                                             static_cast<uint32_t>(sums[rank][i])});
    }
  }
  return by_tensor;
}

}  // namespace tessera
