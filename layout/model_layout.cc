#include "layout/model_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

namespace {

// What a unit is cut over.
absl::StatusOr<int64_t> NumShards(const UnitSpec& unit, Strategy strategy,
                                  const Sharding& sharding) {
  if (!IsHybrid(strategy)) return sharding.world_size;
  if (sharding.group_size < 1 || sharding.world_size % sharding.group_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("unit '", unit.name, "': ", Name(strategy),
                                                   " over groups of ", sharding.group_size, " of ",
                                                   sharding.world_size, " ranks"));
  }
  return sharding.group_size;
}

}  // namespace

absl::StatusOr<ModelLayout> ModelLayout::Create(const ModelSpec& model,
                                                const LayoutOptions& options, int64_t world_size) {
  Sharding sharding;
  sharding.world_size = world_size;
  return Create(model, options, sharding);
}

absl::StatusOr<ModelLayout> ModelLayout::Create(const ModelSpec& model,
                                                const LayoutOptions& options,
                                                const Sharding& sharding) {
  RETURN_IF_ERROR(ValidateModel(model));
  ModelLayout layout;
  layout.world_size = sharding.world_size;
  layout.buffers = model.buffers;
  layout.units.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) {
    LayoutOptions of_unit = options;
    // Aligned for the dtype that kernels read.
    of_unit.alignment_dtype = unit.compute_dtype.value_or(options.alignment_dtype);
    const Strategy strategy = unit.strategy.value_or(sharding.strategy);
    ASSIGN_OR_RETURN(const int64_t num_shards, NumShards(unit, strategy, sharding));
    ASSIGN_OR_RETURN(FlatLayout flat, FlatLayout::Create(unit, of_unit));
    ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(flat, num_shards));
    layout.units.push_back(
        {std::move(flat), shards, unit.compute_dtype, unit.reduce_dtype, strategy});
  }
  return layout;
}

}  // namespace tessera
