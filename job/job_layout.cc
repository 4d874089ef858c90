#include "job/job_layout.h"

#include <optional>

namespace tessera {
namespace {

// The model with the dtypes that its fp64 units train in.
ModelSpec WithOwnPrecision(ModelSpec model, const JobConfig& config) {
  for (UnitSpec& unit : model.units) {
    // The first one's dtype is the unit's: Create below refuses a unit with several.
    if (unit.parameters.empty() || unit.parameters[0].dtype != DType::kFp64) continue;
    // A half stays what the user chose. Everything else of an fp64 unit is fp64.
    if (!IsHalf(unit.compute_dtype.value_or(config.compute_dtype)))
      unit.compute_dtype = DType::kFp64;
    if (!IsHalf(unit.reduce_dtype.value_or(config.reduce_dtype))) unit.reduce_dtype = DType::kFp64;
  }
  return model;
}

}  // namespace

absl::StatusOr<ModelLayout> LayOut(const ModelSpec& model, const JobConfig& config) {
  LayoutOptions options = config.layout;
  options.alignment_dtype = config.compute_dtype;
  Sharding sharding;
  sharding.world_size = config.world_size;
  sharding.strategy = config.strategy;
  sharding.group_size = config.shard_group_size;
  return ModelLayout::Create(WithOwnPrecision(model, config), options, sharding);
}

}  // namespace tessera
