#include "layout/step_traffic.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"

namespace tessera {
namespace {

bool IsTrained(const FlatLayout& flat) {
  return std::any_of(flat.parameters().begin(), flat.parameters().end(),
                     [](const PlacedParameter& parameter) { return parameter.spec.requires_grad; });
}

}  // namespace

absl::StatusOr<StepTraffic> PlanTraffic(const ModelLayout& layout, DType compute_dtype,
                                        DType reduce_dtype) {
  absl::int128 gathered = 0;
  absl::int128 reduced = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const ShardMap& shards = layout.units[unit].shards;
    const absl::int128 others = shards.padded_numel() - shards.shard_numel();
    const UnitLayout& of_unit = layout.units[unit];
    const bool twice = ReshardsAfterForward(of_unit.strategy) && unit != 0;
    gathered += others * SizeBytes(of_unit.compute_dtype.value_or(compute_dtype)) * (twice ? 2 : 1);
    if (IsTrained(of_unit.flat)) {
      reduced += others * SizeBytes(of_unit.reduce_dtype.value_or(reduce_dtype));
      const int64_t other_groups = layout.world_size / shards.num_shards() - 1;
      reduced +=
          absl::int128(shards.shard_numel()) * SizeBytes(of_unit.full_dtype()) * other_groups;
    }
  }
  if (std::max(gathered, reduced) > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError("a step's traffic in bytes overflows int64");
  }
  return StepTraffic{static_cast<int64_t>(gathered), static_cast<int64_t>(reduced)};
}

}  // namespace tessera
