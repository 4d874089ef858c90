#include "layout/model_layout.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<ModelLayout> ModelLayout::Create(const ModelSpec& model,
                                                const LayoutOptions& options, int64_t world_size) {
  RETURN_IF_ERROR(ValidateModel(model));
  ModelLayout layout;
  layout.world_size = world_size;
  layout.units.reserve(model.units.size());
  for (const UnitSpec& unit : model.units) {
    LayoutOptions of_unit = options;
    of_unit.alignment_dtype = unit.compute_dtype.value_or(options.alignment_dtype);
    ASSIGN_OR_RETURN(FlatLayout flat, FlatLayout::Create(unit, of_unit));
    ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(flat, world_size));
    layout.units.push_back({std::move(flat), shards, unit.compute_dtype, unit.reduce_dtype});
  }
  return layout;
}

}  // namespace tessera
