#include "layout/shard_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "layout/checked_math.h"

namespace tessera {

ElementRange Intersect(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  // An empty intersection has size 0, never a negative one.
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

absl::StatusOr<ShardMap> ShardMap::Create(const FlatLayout& layout, int64_t num_shards) {
  if (num_shards < 1) {
    return absl::InvalidArgumentError(absl::StrCat("world size ", num_shards, " is less than one"));
  }
  const LayoutOptions& options = layout.options();
  const int64_t alignment_elements =
      options.shard_alignment_bytes == 0
          ? 1
          : options.shard_alignment_bytes / SizeBytes(options.alignment_dtype);
  // ceil(end / num_shards), without the sum that could overflow.
  const int64_t end_elements = layout.end_elements();
  const int64_t least_numel = end_elements / num_shards + (end_elements % num_shards != 0 ? 1 : 0);
  ShardMap map;
  map.num_shards_ = num_shards;
  int64_t padded_numel = 0;
  if (!CheckedRoundUp(least_numel, alignment_elements, &map.shard_numel_) ||
      !CheckedMul(map.shard_numel_, num_shards, &padded_numel)) {
    return absl::InvalidArgumentError(absl::StrCat("unit \"", layout.unit_name(),
                                                   "\": ", end_elements, " elements padded for ",
                                                   num_shards, " ranks overflow int64"));
  }
  return map;
}

ElementRange ShardMap::RangeOf(Rank rank) const {
  // Replicas of a slice are num_shards ranks apart.
  const int64_t slice = rank.value() % num_shards_;
  return {shard_numel_ * slice, shard_numel_ * (slice + 1)};
}

Rank ShardMap::OwnerOf(int64_t element) const { return Rank(element / shard_numel_); }

}  // namespace tessera
