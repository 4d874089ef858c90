#include "layout/unit_parts.h"

#include <algorithm>

namespace tessera {

bool ShardsNothing(const UnitLayout& unit) {
  return unit.strategy == Strategy::kNoShard || unit.shards.num_shards() == 1;
}

ElementRange RowsOf(int64_t rows, int64_t num_chunks, int64_t chunk) {
  // Rounded up, so that the last chunks may be smaller or empty.
  const int64_t each = (rows + num_chunks - 1) / num_chunks;
  return {std::min(rows, chunk * each), std::min(rows, (chunk + 1) * each)};
}

int64_t ElementsBefore(const UnitLayout& unit, const ElementRange& slice) {
  int64_t before = 0;
  for (const PlacedParameter& placed : unit.flat.parameters())
    before += std::clamp<int64_t>(slice.begin - placed.offset_elements, 0, placed.numel);
  return before;
}

}  // namespace tessera
