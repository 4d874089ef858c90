#include "layout/reshard_plan.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status ValidateMap(const FlatLayout& layout, const ShardMap& map) {
  if (map.padded_numel() >= layout.end_elements()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unit \"", layout.unit_name(), "\": a shard map of ", map.padded_numel(),
                   " elements is not one of this layout of ", layout.end_elements(), " elements"));
}

// Ranges of elements without padding, as long as possible: neighbours without a gap are one.
std::vector<ElementRange> RunsWithoutPadding(const FlatLayout& layout) {
  std::vector<ElementRange> runs;
  for (const PlacedParameter& parameter : layout.parameters()) {
    if (parameter.numel == 0) continue;
    const int64_t end = parameter.offset_elements + parameter.numel;
    if (!runs.empty() && runs.back().end == parameter.offset_elements) {
      runs.back().end = end;
    } else {
      runs.push_back({parameter.offset_elements, end});
    }
  }
  return runs;
}

ElementRange CountedFrom(const ElementRange& range, int64_t origin) {
  return {range.begin - origin, range.end - origin};
}

}  // namespace

absl::StatusOr<std::vector<ShardCopy>> PlanReshard(const FlatLayout& layout, const ShardMap& from,
                                                   const ShardMap& to) {
  RETURN_IF_ERROR(ValidateMap(layout, from));
  RETURN_IF_ERROR(ValidateMap(layout, to));
  std::vector<ShardCopy> copies;
  for (const ElementRange& run : RunsWithoutPadding(layout)) {
    ElementRange rest = run;
    while (!rest.empty()) {
      const Rank source = from.OwnerOf(rest.begin);
      const Rank destination = to.OwnerOf(rest.begin);
      const ElementRange old_range = from.RangeOf(source);
      const ElementRange new_range = to.RangeOf(destination);
      const ElementRange moved = Intersect(Intersect(rest, old_range), new_range);
      copies.push_back({source, CountedFrom(moved, old_range.begin), destination,
                        CountedFrom(moved, new_range.begin)});
      rest.begin = moved.end;
    }
  }
  return copies;
}

}  // namespace tessera
