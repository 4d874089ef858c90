#include "layout/reduced_parts.h"

#include <algorithm>

namespace tessera {

std::vector<ElementRange> ReducedParts(const UnitLayout& unit) {
  const std::vector<PlacedParameter>& parameters = unit.flat.parameters();
  const bool all_trainable =
      std::all_of(parameters.begin(), parameters.end(),
                  [](const PlacedParameter& parameter) { return parameter.spec.requires_grad; });
  // One part, padding included: one long run costs less than many with gaps.
  if (all_trainable) return {{0, unit.shards.padded_numel()}};
  std::vector<ElementRange> parts;
  for (const PlacedParameter& parameter : parameters) {
    if (!parameter.spec.requires_grad || parameter.numel == 0) continue;
    parts.push_back({parameter.offset_elements, parameter.offset_elements + parameter.numel});
  }
  return parts;
}

int64_t CountIn(absl::Span<const ElementRange> parts, const ElementRange& slice) {
  int64_t count = 0;
  for (const ElementRange& part : parts) count += Intersect(part, slice).size();
  return count;
}

}  // namespace tessera
