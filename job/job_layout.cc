#include "job/job_layout.h"

#include <optional>

#include "absl/algorithm/container.h"

namespace tessera {
namespace {

bool IsFp64(const UnitSpec& unit) {
  return !unit.parameters.empty() && unit.parameters[0].dtype == DType::kFp64;
}

// The model with the dtypes that its fp64 units train in.
ModelSpec WithOwnPrecision(ModelSpec model, const JobConfig& config) {
  for (UnitSpec& unit : model.units) {
    if (!IsFp64(unit)) continue;
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
  // Most models have no such unit, and a copy of a large model takes many MiB.
  if (absl::c_none_of(model.units, IsFp64)) return ModelLayout::Create(model, options, sharding);
  return ModelLayout::Create(WithOwnPrecision(model, config), options, sharding);
}

}  // namespace tessera
