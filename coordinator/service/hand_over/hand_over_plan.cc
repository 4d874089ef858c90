#include "coordinator/service/hand_over/hand_over_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/field_limits.h"
#include "job/live_tensors.h"

namespace tessera::coordinator {
namespace {

// Of each parameter all arrays, and some that two units share; and the buffers.
constexpr int kMaxRanges = 4 * kMaxParameters + kMaxBuffers;

// Each parameter of the job, by its number.
std::vector<LiveTensor> Parameters(const ModelLayout& layout) {
  std::vector<LiveTensor> parameters;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    for (size_t p = 0; p < layout.units[unit].flat.parameters().size(); ++p) {
      parameters.push_back({static_cast<int>(unit), static_cast<int>(p),
                            static_cast<int>(parameters.size()), LiveArray::kParameter});
    }
  }
  return parameters;
}

bool HasArray(const TensorSpec& spec, OptimizerKind optimizer, v1::LiveStateArray array) {
  switch (array) {
    case v1::LIVE_STATE_ARRAY_PARAMETER:
      return true;
    case v1::LIVE_STATE_ARRAY_FIRST_MOMENT:
      return spec.requires_grad;
    case v1::LIVE_STATE_ARRAY_SECOND_MOMENT:
      return spec.requires_grad && optimizer != OptimizerKind::kSgd;
    default:
      return false;
  }
}

// Whether the tensor, which has `all` elements, has these.
absl::Status CheckWithin(const v1::LiveRange& range, int64_t all, absl::string_view kind,
                         absl::string_view name) {
  const int64_t begin = range.begin_elements(), numel = range.numel();
  // The client's numbers may be anything, so no sum of them is formed, which could overflow.
  if (begin >= 0 && numel >= 0 && begin <= all && numel <= all - begin) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kind, " '", name, "' has ", all, " elements, and not ", numel, " from ", begin, " on"));
}

// Rank 0 has all of it.
absl::StatusOr<HandOverPart> BufferPart(const ModelLayout& layout, const v1::LiveRange& range) {
  if (range.parameter() < 0 || range.parameter() >= static_cast<int>(layout.buffers.size()))
    return absl::InvalidArgumentError(absl::StrCat("the job has no buffer ", range.parameter()));
  const BufferSpec& buffer = layout.buffers[range.parameter()];
  ASSIGN_OR_RETURN(const int64_t all, Numel(buffer));
  RETURN_IF_ERROR(CheckWithin(range, all, "buffer", buffer.name));
  HandOverPart part = {range, SizeBits(buffer.dtype) / 8};
  part.range.set_rank(0);
  return part;
}

}  // namespace

absl::StatusOr<std::vector<HandOverPart>> PlanHandOverRead(const ModelLayout& layout,
                                                           OptimizerKind optimizer,
                                                           const v1::ReadHandOverRequest& request) {
  if (request.ranges_size() > kMaxRanges)
    return absl::InvalidArgumentError(absl::StrCat(request.ranges_size(), " ranges at once"));
  const std::vector<LiveTensor> parameters = Parameters(layout);
  std::vector<HandOverPart> plan;
  for (const v1::LiveRange& range : request.ranges()) {
    if (range.array() == v1::LIVE_STATE_ARRAY_BUFFER) {
      ASSIGN_OR_RETURN(HandOverPart part, BufferPart(layout, range));
      if (part.range.numel() > 0) plan.push_back(std::move(part));
      continue;
    }
    if (range.parameter() < 0 || range.parameter() >= static_cast<int>(parameters.size()))
      return absl::InvalidArgumentError(
          absl::StrCat("the job has no parameter ", range.parameter()));
    const LiveTensor& tensor = parameters[range.parameter()];
    const PlacedParameter& parameter = ParameterOf(layout, tensor);
    if (!HasArray(parameter.spec, optimizer, range.array())) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.spec.name, "' has no state array ", range.array()));
    }
    RETURN_IF_ERROR(CheckWithin(range, parameter.numel, "parameter", parameter.spec.name));
    const int64_t begin = range.begin_elements(), numel = range.numel();
    const UnitLayout& unit = layout.units[tensor.unit];
    const auto add = [&](const LiveSlice& slice) {
      const int64_t from = std::max(begin, slice.begin_elements);
      const int64_t to = std::min(begin + numel, slice.begin_elements + slice.numel);
      if (from >= to) return absl::OkStatus();
      HandOverPart part = {range, SizeBytes(unit.full_dtype())};
      part.range.set_begin_elements(from);
      part.range.set_numel(to - from);
      part.range.set_rank(slice.rank);
      plan.push_back(std::move(part));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForEachLiveSlice(layout, {tensor}, 0, unit.shards.num_shards(), add));
  }
  return plan;
}

}  // namespace tessera::coordinator
