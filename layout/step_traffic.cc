#include "layout/step_traffic.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "base/ids.h"
#include "layout/reduced_parts.h"

namespace tessera {
namespace {

// Elements that are reduced in the slice that has most of them.
int64_t MostReduced(const UnitLayout& unit) {
  const std::vector<ElementRange> parts = ReducedParts(unit);
  int64_t most = 0;
  for (int64_t rank = 0; rank < unit.shards.num_shards(); ++rank)
    most = std::max(most, CountIn(parts, unit.shards.RangeOf(Rank(rank))));
  return most;
}

}  // namespace

absl::StatusOr<StepTraffic> PlanTraffic(const ModelLayout& layout, DType compute_dtype,
                                        DType reduce_dtype) {
  // In 128 bits, and checked once at the end.
  absl::int128 gathered = 0;
  absl::int128 reduced = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const ShardMap& shards = layout.units[unit].shards;
    const absl::int128 others = shards.padded_numel() - shards.shard_numel();
    const UnitLayout& of_unit = layout.units[unit];
    // Gathered for forward, and again for backward.
    // The root stays as it is from forward to backward.
    const bool twice = ReshardsAfterForward(of_unit.strategy) && unit != 0;
    gathered += others * SizeBytes(of_unit.compute_dtype.value_or(compute_dtype)) * (twice ? 2 : 1);
    const absl::int128 slice = MostReduced(of_unit);
    const int64_t other_groups = layout.world_size / shards.num_shards() - 1;
    reduced +=
        slice * (shards.num_shards() - 1) * SizeBytes(of_unit.reduce_dtype.value_or(reduce_dtype));
    reduced += slice * SizeBytes(of_unit.full_dtype()) * other_groups;
  }
  if (std::max(gathered, reduced) > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError("a step's traffic in bytes overflows int64");
  }
  return StepTraffic{static_cast<int64_t>(gathered), static_cast<int64_t>(reduced)};
}

}  // namespace tessera
