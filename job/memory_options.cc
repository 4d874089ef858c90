#include "job/memory_options.h"

#include <algorithm>

namespace tessera {

MemoryOptions MemoryOptionsOf(const JobConfig& config) {
  MemoryOptions options;
  options.compute_dtype = config.compute_dtype;
  options.optimizer_states = 2;
  if (config.optimizer == OptimizerKind::kSgd) {
    // Groups share the array: it is needed if any of them has momentum.
    const bool has_momentum = std::any_of(config.groups.begin(), config.groups.end(),
                                          [](const ParamGroup& g) { return g.momentum != 0; });
    options.optimizer_states = has_momentum ? 1 : 0;
  }
  options.max_gathered_units = config.max_gathered_units;
  options.max_gathered_bytes = config.max_gathered_bytes;
  options.gradient_slots = config.gradient_slots;
  options.shard_group_size = config.shard_group_size;
  return options;
}

}  // namespace tessera
