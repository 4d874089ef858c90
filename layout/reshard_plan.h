// The copies that turn one world size's shards into another's, over the same FlatLayout.
//
//   from  rank 0 [0, 8)        | rank 1 [8, 16)
//   to    rank 0 [0, 6) | rank 1 [6, 12) | rank 2 [12, 18)
//   plan  0->0 [0,6)  0->1 [6,8)  1->1 [8,12)  1->2 [12,16)
//
// All quantities are ELEMENTS, ranges half-open. Pure.
#ifndef TESSERA_LAYOUT_RESHARD_PLAN_H_
#define TESSERA_LAYOUT_RESHARD_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "layout/flat_layout.h"
#include "layout/shard_map.h"

namespace tessera {

// Both ranges count from the first element of their rank's shard and are of the same size.
struct ShardCopy {
  Rank source;
  ElementRange source_range;
  Rank destination;
  ElementRange destination_range;

  friend bool operator==(const ShardCopy& a, const ShardCopy& b) {
    return a.source == b.source && a.source_range == b.source_range &&
           a.destination == b.destination && a.destination_range == b.destination_range;
  }
};

// The fewest copies that move every parameter element once and no padding, ascending by position
// in the flat parameter (so by destination as well as by source). Elements that stay at their place
// on their rank are listed too: old and new shards are different memory.
// Errors: InvalidArgument  a map is shorter than the layout, so it belongs to another one.
absl::StatusOr<std::vector<ShardCopy>> PlanReshard(const FlatLayout& layout, const ShardMap& from,
                                                   const ShardMap& to);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_RESHARD_PLAN_H_
