// Cuts a flat parameter into one equal slice for each rank.
//
//   rank 0 [ 0, 12)  | wq ........ | bq | gap |
//   rank 1 [12, 24)  | wk ........ | bk | pad |
//
// Where there are fewer slices than ranks, ranks that are so many apart are replicas: rank r has
// slice r mod num_shards.
//
// All quantities are ELEMENTS, ranges half-open. Every rank owns the same number of elements
// (equal-count collectives need it), so the tail is padded; trailing ranks may own only padding.
// A new world size is a new ShardMap over the same FlatLayout. Pure value; thread-compatible.
#ifndef TESSERA_LAYOUT_SHARD_MAP_H_
#define TESSERA_LAYOUT_SHARD_MAP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "layout/flat_layout.h"

namespace tessera {

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const ElementRange& a, const ElementRange& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

ElementRange Intersect(const ElementRange& a, const ElementRange& b);  // Empty as {x, x}.

class ShardMap {
 public:
  // Errors: InvalidArgument  num_shards < 1, or the padded size overflows int64.
  static absl::StatusOr<ShardMap> Create(const FlatLayout& layout, int64_t num_shards);

  int64_t num_shards() const { return num_shards_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t padded_numel() const { return shard_numel_ * num_shards_; }
  ElementRange RangeOf(Rank rank) const;  // Requires 0 <= rank.
  // The lowest rank that has it. Requires 0 <= element < padded_numel().
  Rank OwnerOf(int64_t element) const;
  // Whether lower ranks have the same slice.
  bool IsReplica(Rank rank) const { return rank.value() >= num_shards_; }

 private:
  int64_t num_shards_ = 1;
  int64_t shard_numel_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_SHARD_MAP_H_
