#include "coordinator/service/live/put_plan.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "job/field_limits.h"
#include "job/held_ranges.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "job/live_array_codec.h"

namespace tessera::coordinator {
namespace {

// Parameters, two moments of each, as many aliases, and buffers.
constexpr int64_t kMaxTensors = 5 * kMaxParameters;

// The numbers of parameters by name, also by alias.
std::map<std::string, int> NumbersByName(const ModelLayout& layout) {
  std::map<std::string, int> numbers;
  int number = 0;
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters())
      numbers[parameter.spec.name] = number++;
  }
  // After all parameters, because an alias may be in an earlier unit than its primary.
  for (const UnitLayout& unit : layout.units) {
    for (const Alias& alias : unit.flat.aliases()) {
      const auto primary = numbers.find(alias.primary);
      if (primary != numbers.end()) numbers[alias.name] = primary->second;
    }
  }
  return numbers;
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckCount(const v1::PutTensor& from, LiveArray array) {
  const bool is_moment = array != LiveArray::kParameter && array != LiveArray::kBuffer;
  // The next update depends on how many there were: a moment without its count is another state.
  if (is_moment != from.has_update_count()) {
    return absl::InvalidArgumentError(
        "a count of updates belongs to each moment, and to nothing else");
  }
  return CheckRange("count of updates", from.update_count(), 0,
                    std::numeric_limits<int32_t>::max());
}

absl::Status CheckShape(const std::vector<int64_t>& own, const v1::PutTensor& from) {
  const std::vector<int64_t> given(from.shape().begin(), from.shape().end());
  if (given == own) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its shape is ", ShapeText(own), ", but the put has ", ShapeText(given)));
}

absl::StatusOr<PutPlan::Tensor> PlanBuffer(const ModelLayout& layout,
                                           const std::map<std::string, int>& numbers,
                                           const v1::PutTensor& from) {
  const auto number = numbers.find(from.parameter());
  if (number == numbers.end()) return absl::NotFoundError("the job has no such buffer");
  const BufferSpec& buffer = layout.buffers[number->second];
  RETURN_IF_ERROR(CheckShape(buffer.shape, from));
  // Buffers are bytes to the job, so nothing converts them.
  if (Name(buffer.dtype) != from.stored_dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its dtype is ", Name(buffer.dtype), ", but the put has '", from.stored_dtype(), "'"));
  }
  RETURN_IF_ERROR(CheckCount(from, LiveArray::kBuffer));
  PutPlan::Tensor tensor;
  tensor.name = from.parameter();
  tensor.tensor.job_parameter = number->second;
  tensor.tensor.array = LiveArray::kBuffer;
  tensor.element_bytes = SizeBits(buffer.dtype) / 8;
  ASSIGN_OR_RETURN(tensor.numel, Numel(buffer));
  return tensor;
}

absl::StatusOr<PutPlan::Tensor> PlanTensor(const JobSpec& spec, const ModelLayout& layout,
                                           const ParameterNumbers& places,
                                           const std::map<std::string, int>& numbers,
                                           const v1::PutTensor& from) {
  const auto number = numbers.find(from.parameter());
  if (number == numbers.end()) return absl::NotFoundError("the job has no such parameter");
  PutPlan::Tensor tensor;
  tensor.name = from.parameter();
  ASSIGN_OR_RETURN(const LiveArray array, DecodeLiveArray(from.array()));
  ASSIGN_OR_RETURN(tensor.tensor, places.TensorOf(number->second, array, spec.config.optimizer));
  const PlacedParameter& placed = ParameterOf(layout, tensor.tensor);
  RETURN_IF_ERROR(CheckShape(placed.spec.shape, from));
  ASSIGN_OR_RETURN(tensor.dtype, DecodeDType(from.dtype()));
  if (!IsPutDType(tensor.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("elements of ", Name(tensor.dtype),
                                                   ": it is set from fp32, fp64, bf16 or fp16"));
  }
  RETURN_IF_ERROR(CheckCount(from, array));
  tensor.update_count = from.update_count();
  tensor.element_bytes = SizeBytes(tensor.dtype);
  tensor.numel = placed.numel;
  return tensor;
}

// Finds tensors that set the same parameter, and rejects a tensor that is there twice.
absl::Status FindShared(PutPlan* plan) {
  std::map<std::pair<int, LiveArray>, int> first;
  std::set<std::pair<std::string, LiveArray>> seen;
  for (size_t t = 0; t < plan->tensors.size(); ++t) {
    PutPlan::Tensor& tensor = plan->tensors[t];
    if (!seen.emplace(tensor.name, tensor.tensor.array).second)
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' occurs twice"));
    const auto [it, is_new] = first.emplace(
        std::pair(tensor.tensor.job_parameter, tensor.tensor.array), static_cast<int>(t));
    if (is_new) {
      ++plan->num_tensors;
      continue;
    }
    PutPlan::Tensor& other = plan->tensors[it->second];
    if (other.dtype != tensor.dtype || other.update_count != tensor.update_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", other.name, "' and '", tensor.name,
                       "' are one parameter, but have two dtypes or counts of updates"));
    }
    tensor.same_as = it->second;
    other.is_shared = true;
  }
  return absl::OkStatus();
}

// The moments of a parameter come together, with one count of updates.
absl::Status CheckMoments(const JobSpec& spec, const PutPlan& plan) {
  std::map<int, std::vector<const PutPlan::Tensor*>> moments;
  for (const PutPlan::Tensor& tensor : plan.tensors) {
    if (tensor.tensor.array == LiveArray::kParameter || tensor.same_as >= 0 ||
        tensor.tensor.array == LiveArray::kBuffer)
      continue;
    moments[tensor.tensor.job_parameter].push_back(&tensor);
  }
  const size_t wanted = spec.config.optimizer == OptimizerKind::kSgd ? 1 : 2;
  for (const auto& [parameter, tensors] : moments) {
    const std::string& name = tensors[0]->name;
    if (tensors.size() != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "': one of its two moments is missing"));
    }
    if (tensors[0]->update_count != tensors.back()->update_count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", name, "': its moments are those after ", tensors[0]->update_count,
          " and after ", tensors.back()->update_count, " updates"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PutPlan> PlanPut(const JobSpec& spec, const v1::PutBegin& begin) {
  RETURN_IF_ERROR(CheckRange("number of tensors", begin.tensors_size(), 1, kMaxTensors));
  PutPlan plan;
  ASSIGN_OR_RETURN(plan.layout, LayOut(spec.model, spec.config));
  const ParameterNumbers places(plan.layout);
  const std::map<std::string, int> numbers = NumbersByName(plan.layout);
  std::map<std::string, int> buffers;
  for (const BufferSpec& buffer : plan.layout.buffers)
    buffers.emplace(buffer.name, static_cast<int>(buffers.size()));
  for (const v1::PutTensor& from : begin.tensors()) {
    const bool is_buffer = from.array() == v1::LIVE_STATE_ARRAY_BUFFER;
    absl::StatusOr<PutPlan::Tensor> tensor =
        is_buffer ? PlanBuffer(plan.layout, buffers, from)
                  : PlanTensor(spec, plan.layout, places, numbers, from);
    RETURN_IF_ERROR(Annotate(tensor.status(), absl::StrCat(is_buffer ? "buffer" : "parameter", " '",
                                                           from.parameter(), "'")));
    plan.size_bytes += tensor->numel * tensor->element_bytes;
    plan.tensors.push_back(*std::move(tensor));
  }
  RETURN_IF_ERROR(FindShared(&plan));
  RETURN_IF_ERROR(CheckMoments(spec, plan));
  return plan;
}

}  // namespace tessera::coordinator
