#include "job/live_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "layout/unit_parts.h"

namespace tessera {

namespace {

// What the form gives of a parameter, or of a moment of it.
ElementRange PartOf(const UnitLayout& unit, const PlacedParameter& parameter,
                    const LivePartOf& part) {
  const std::vector<int64_t>& shape = parameter.spec.shape;
  const int64_t chunk = part.rank % unit.shards.num_shards();
  if (part.form == LiveForm::kLocal) {
    const ElementRange slice = unit.shards.RangeOf(Rank(chunk));
    // Clamped: what is outside the parameter counts as empty.
    const auto in_parameter = [&](int64_t element) {
      return std::clamp<int64_t>(element - parameter.offset_elements, 0, parameter.numel);
    };
    return {in_parameter(slice.begin), in_parameter(slice.end)};
  }
  if (part.form == LiveForm::kFull || ShardsNothing(unit) || shape.empty())
    return {0, parameter.numel};
  const ElementRange rows = RowsOf(shape[0], unit.shards.num_shards(), chunk);
  const int64_t numel_of_row = shape[0] == 0 ? 0 : parameter.numel / shape[0];
  return {rows.begin * numel_of_row, rows.end * numel_of_row};
}

// A unit's, array by array, which together are one tensor each.
std::vector<LiveTensor> JoinArrays(const std::vector<LiveTensor>& tensors) {
  std::vector<LiveTensor> joined;
  for (const LiveArray array :
       {LiveArray::kParameter, LiveArray::kFirstMoment, LiveArray::kSecondMoment}) {
    int64_t sent = 0;
    for (const LiveTensor& tensor : tensors) {
      if (tensor.array != array) continue;
      joined.push_back(tensor);
      joined.back().sent_begin_elements = sent;
      sent += tensor.part.size();
    }
  }
  return joined;
}

absl::Status AddBuffers(const ModelLayout& layout, const std::vector<int>& buffers,
                        std::vector<LiveTensor>* tensors) {
  const int num_buffers = static_cast<int>(layout.buffers.size());
  // Numbers come over the wire. In rising order each occurs once.
  int next = 0;
  for (const int buffer : buffers) {
    if (buffer < next || buffer >= num_buffers) {
      return absl::InvalidArgumentError(absl::StrCat("buffer ", buffer, " of ", num_buffers,
                                                     ": it does not exist, or is out of order"));
    }
    tensors->push_back({-1, -1, buffer, LiveArray::kBuffer});
    next = buffer + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LiveTensor>> LiveTensors(const ModelLayout& layout,
                                                    OptimizerKind optimizer,
                                                    const std::vector<int>& job_parameters,
                                                    bool moments, const std::vector<int>& buffers,
                                                    const LivePartOf& part) {
  std::vector<LiveTensor> tensors;
  // Both lists rise, so one pass is enough.
  auto wanted = job_parameters.begin();
  int job_parameter = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const std::vector<PlacedParameter>& parameters = layout.units[unit].flat.parameters();
    std::vector<LiveTensor> of_unit;
    for (size_t p = 0; p < parameters.size(); ++p, ++job_parameter) {
      if (wanted == job_parameters.end() || *wanted != job_parameter) continue;
      ++wanted;
      LiveTensor tensor = {static_cast<int>(unit), static_cast<int>(p), job_parameter,
                           LiveArray::kParameter};
      tensor.part = PartOf(layout.units[unit], parameters[p], part);
      of_unit.push_back(tensor);
      if (!moments || (!parameters[p].spec.requires_grad && part.form != LiveForm::kLocal))
        continue;
      tensor.array = LiveArray::kFirstMoment;
      of_unit.push_back(tensor);
      tensor.array = LiveArray::kSecondMoment;
      if (optimizer != OptimizerKind::kSgd) of_unit.push_back(tensor);
    }
    if (part.form == LiveForm::kLocal) of_unit = JoinArrays(of_unit);
    tensors.insert(tensors.end(), of_unit.begin(), of_unit.end());
  }
  if (wanted != job_parameters.end()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", *wanted, " of ", job_parameter,
                                                   ": it does not exist, or is out of order"));
  }
  RETURN_IF_ERROR(AddBuffers(layout, buffers, &tensors));
  return tensors;
}

const PlacedParameter& ParameterOf(const ModelLayout& layout, const LiveTensor& tensor) {
  return layout.units[tensor.unit].flat.parameters()[tensor.parameter];
}

const BufferSpec& BufferOf(const ModelLayout& layout, const LiveTensor& tensor) {
  return layout.buffers[tensor.job_parameter];
}

const std::vector<int64_t>& ShapeOf(const ModelLayout& layout, const LiveTensor& tensor) {
  if (tensor.array == LiveArray::kBuffer) return BufferOf(layout, tensor).shape;
  return ParameterOf(layout, tensor).spec.shape;
}

std::string MomentTensorName(const std::string& parameter, OptimizerKind optimizer,
                             LiveArray moment) {
  absl::string_view name = moment == LiveArray::kFirstMoment ? "exp_avg" : "exp_avg_sq";
  if (optimizer == OptimizerKind::kSgd) name = "momentum_buffer";
  return absl::StrCat("state.", parameter, ".", name);
}

std::string LiveTensorName(const ModelLayout& layout, OptimizerKind optimizer,
                           const LiveTensor& tensor) {
  if (tensor.array == LiveArray::kBuffer) return BufferOf(layout, tensor).name;
  const std::string& parameter = ParameterOf(layout, tensor).spec.name;
  if (tensor.array == LiveArray::kParameter) return parameter;
  return MomentTensorName(parameter, optimizer, tensor.array);
}

absl::Status ForEachLiveSlice(const ModelLayout& layout, const std::vector<LiveTensor>& tensors,
                              int first_rank, int end_rank,
                              absl::FunctionRef<absl::Status(const LiveSlice&)> visit) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].array == LiveArray::kBuffer) {
      ASSIGN_OR_RETURN(const int64_t numel, Numel(BufferOf(layout, tensors[t])));
      // Buffers are rank 0's.
      if (numel == 0 || first_rank > 0 || end_rank < 1) continue;
      RETURN_IF_ERROR(visit({static_cast<int>(t), 0, 0, 0, numel, 0}));
      continue;
    }
    const PlacedParameter& parameter = ParameterOf(layout, tensors[t]);
    const ShardMap& shards = layout.units[tensors[t].unit].shards;
    const int64_t offset = parameter.offset_elements;
    const int64_t part_begin = std::min(tensors[t].part.begin, parameter.numel);
    const ElementRange wanted = {offset + part_begin,
                                 offset + std::min(tensors[t].part.end, parameter.numel)};
    if (wanted.empty()) continue;
    // The ranks that have any of it follow each other.
    const int first = std::max<int64_t>(first_rank, wanted.begin / shards.shard_numel());
    const int end = std::min<int64_t>(end_rank, (wanted.end - 1) / shards.shard_numel() + 1);
    for (int rank = first; rank < end; ++rank) {
      const ElementRange slice = shards.RangeOf(Rank(rank));
      const ElementRange part = Intersect(wanted, slice);
      if (part.empty()) continue;
      RETURN_IF_ERROR(
          visit({static_cast<int>(t), rank, part.begin - offset, part.begin - slice.begin,
                 part.size(), tensors[t].sent_begin_elements + part.begin - wanted.begin}));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
