// Which elements of a unit's flat gradient are reduced over the ranks.
//
//   | w (frozen) ........ | b | v (frozen) ....... | c |gap|     all trainable: the whole, gaps and
//                          ^^^                       ^^^          padding too; else the trainable
//                          part                      part         parameters' elements alone
//
// Parts are ascending and disjoint, in ELEMENTS, half-open. Pure; thread-safe.
#ifndef TESSERA_LAYOUT_REDUCED_PARTS_H_
#define TESSERA_LAYOUT_REDUCED_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "layout/model_layout.h"
#include "layout/shard_map.h"

namespace tessera {

// None where all parameters are frozen.
std::vector<ElementRange> ReducedParts(const UnitLayout& unit);

// How many elements of `slice` are in `parts`.
int64_t CountIn(absl::Span<const ElementRange> parts, const ElementRange& slice);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_REDUCED_PARTS_H_
