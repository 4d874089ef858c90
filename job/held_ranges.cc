#include "job/held_ranges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Whether one of the ranks holds the slice of this number.
bool IsHeld(const ShardMap& shards, int64_t slice, int first_rank, int end_rank) {
  const int64_t num_shards = shards.num_shards();
  if (end_rank - first_rank >= num_shards) return true;
  // The first of these ranks that holds it.
  const int64_t behind = (slice - first_rank % num_shards + num_shards) % num_shards;
  return first_rank + behind < end_rank;
}

}  // namespace

ParameterNumbers::ParameterNumbers(const ModelLayout& layout) {
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const std::vector<PlacedParameter>& parameters = layout.units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      places_.push_back({static_cast<int>(unit), static_cast<int>(p),
                         parameters[p].spec.requires_grad, parameters[p].spec.name});
    }
  }
}

absl::StatusOr<LiveTensor> ParameterNumbers::TensorOf(int64_t job_parameter, LiveArray array,
                                                      OptimizerKind optimizer) const {
  if (job_parameter < 0 || job_parameter >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", job_parameter, " does not exist; there are ", size()));
  }
  const Place& place = places_[job_parameter];
  if (array != LiveArray::kParameter && !place.has_moments) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", place.name, "' is frozen: it has no moments"));
  }
  if (array == LiveArray::kSecondMoment && optimizer == OptimizerKind::kSgd) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", place.name, "': SGD keeps no second moment"));
  }
  return LiveTensor{place.unit, place.parameter, static_cast<int>(job_parameter), array};
}

absl::Status ForEachHeldRange(const ModelLayout& layout, const std::vector<LiveTensor>& tensors,
                              int first_rank, int end_rank,
                              absl::FunctionRef<absl::Status(const HeldRange&)> visit) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].array == LiveArray::kBuffer) {
      ASSIGN_OR_RETURN(const int64_t numel, Numel(BufferOf(layout, tensors[t])));
      if (numel > 0) RETURN_IF_ERROR(visit({static_cast<int>(t), 0, numel}));
      continue;
    }
    const PlacedParameter& parameter = ParameterOf(layout, tensors[t]);
    const ShardMap& shards = layout.units[tensors[t].unit].shards;
    const ElementRange whole = {parameter.offset_elements,
                                parameter.offset_elements + parameter.numel};
    if (whole.empty()) continue;
    // Only the slices that the parameter reaches into.
    const int64_t last = (whole.end - 1) / shards.shard_numel();
    for (int64_t slice = whole.begin / shards.shard_numel(); slice <= last; ++slice) {
      if (!IsHeld(shards, slice, first_rank, end_rank)) continue;
      const ElementRange part = Intersect(whole, shards.RangeOf(Rank(slice)));
      if (part.empty()) continue;
      RETURN_IF_ERROR(visit({static_cast<int>(t), part.begin - whole.begin, part.size()}));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
