#include "layout/shard_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "layout/checked_math.h"

namespace tessera {

ElementRange Intersect(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

absl::StatusOr<ShardMap> ShardMap::Create(const FlatLayout& layout, int64_t world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("world size ", world_size, " is less than one"));
  }
  const LayoutOptions& options = layout.options();
  const int64_t alignment_elements =
      options.shard_alignment_bytes == 0
          ? 1
          : options.shard_alignment_bytes / SizeBytes(options.alignment_dtype);
  // ceil(end / world_size), without the sum that could overflow.
  const int64_t end_elements = layout.end_elements();
  const int64_t least_numel = end_elements / world_size + (end_elements % world_size != 0 ? 1 : 0);
  ShardMap map;
  map.world_size_ = world_size;
  int64_t padded_numel = 0;
  if (!CheckedRoundUp(least_numel, alignment_elements, &map.shard_numel_) ||
      !CheckedMul(map.shard_numel_, world_size, &padded_numel)) {
    return absl::InvalidArgumentError(absl::StrCat("unit \"", layout.unit_name(),
                                                   "\": ", end_elements, " elements padded for ",
                                                   world_size, " ranks overflow int64"));
  }
  return map;
}

ElementRange ShardMap::RangeOf(Rank rank) const {
  return {shard_numel_ * rank.value(), shard_numel_ * (rank.value() + 1)};
}

Rank ShardMap::OwnerOf(int64_t element) const { return Rank(element / shard_numel_); }

}  // namespace tessera
