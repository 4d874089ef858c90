#include "job/job_layout.h"

namespace tessera {

absl::StatusOr<ModelLayout> LayOut(const ModelSpec& model, const JobConfig& config) {
  LayoutOptions options = config.layout;
  options.alignment_dtype = config.compute_dtype;
  Sharding sharding;
  sharding.world_size = config.world_size;
  sharding.strategy = config.strategy;
  sharding.group_size = config.shard_group_size;
  return ModelLayout::Create(model, options, sharding);
}

}  // namespace tessera
