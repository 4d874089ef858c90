// Which part of a unit's tensors a rank has, where it is given rows in place of its shard.
// Pure; thread-safe.
#ifndef TESSERA_LAYOUT_UNIT_PARTS_H_
#define TESSERA_LAYOUT_UNIT_PARTS_H_

#include <cstdint>

#include "layout/model_layout.h"
#include "layout/shard_map.h"

namespace tessera {

// Whether each rank has all of it.
bool ShardsNothing(const UnitLayout& unit);

// What chunk `chunk` of `num_chunks` has of so many rows: as torch.chunk cuts them.
ElementRange RowsOf(int64_t rows, int64_t num_chunks, int64_t chunk);

// How many elements of the unit's parameters, without padding, are before this slice.
int64_t ElementsBefore(const UnitLayout& unit, const ElementRange& slice);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_UNIT_PARTS_H_
