#include "job/live_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "layout/shard_map.h"

namespace tessera {

namespace {

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
                                                    bool moments, const std::vector<int>& buffers) {
  std::vector<LiveTensor> tensors;
  // Both lists rise, so one pass is enough.
  auto wanted = job_parameters.begin();
  int job_parameter = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const std::vector<PlacedParameter>& parameters = layout.units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p, ++job_parameter) {
      if (wanted == job_parameters.end() || *wanted != job_parameter) continue;
      ++wanted;
      LiveTensor tensor = {static_cast<int>(unit), static_cast<int>(p), job_parameter,
                           LiveArray::kParameter};
      tensors.push_back(tensor);
      if (!moments || !parameters[p].spec.requires_grad) continue;
      tensor.array = LiveArray::kFirstMoment;
      tensors.push_back(tensor);
      tensor.array = LiveArray::kSecondMoment;
      if (optimizer != OptimizerKind::kSgd) tensors.push_back(tensor);
    }
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
      RETURN_IF_ERROR(visit({static_cast<int>(t), 0, 0, 0, numel}));
      continue;
    }
    const PlacedParameter& parameter = ParameterOf(layout, tensors[t]);
    const ShardMap& shards = layout.units[tensors[t].unit].shards;
    const int64_t offset = parameter.offset_elements;
    const ElementRange whole = {offset, offset + parameter.numel};
    if (whole.empty()) continue;
    // The ranks that have any of it follow each other.
    const int first = std::max<int64_t>(first_rank, whole.begin / shards.shard_numel());
    const int end = std::min<int64_t>(end_rank, (whole.end - 1) / shards.shard_numel() + 1);
    for (int rank = first; rank < end; ++rank) {
      const ElementRange slice = shards.RangeOf(Rank(rank));
      const ElementRange part = Intersect(whole, slice);
      if (part.empty()) continue;
      RETURN_IF_ERROR(visit(
          {static_cast<int>(t), rank, part.begin - offset, part.begin - slice.begin, part.size()}));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
