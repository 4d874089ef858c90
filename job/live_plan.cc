#include "job/live_plan.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "job/live_array_codec.h"
#include "layout/name_selection.h"

namespace tessera {
namespace {

constexpr int kMaxPatterns = 100;

absl::StatusOr<NameSelection> SelectionOf(const v1::LiveStateQuery& query) {
  // Patterns are matched against all names, so their number and their length are bounded.
  RETURN_IF_ERROR(CheckRange("number of patterns", query.include_size() + query.exclude_size(), 0,
                             kMaxPatterns));
  for (const auto* patterns : {&query.include(), &query.exclude()}) {
    for (const std::string& pattern : *patterns)
      RETURN_IF_ERROR(CheckRange("bytes of a pattern", pattern.size(), 1, kMaxNameBytes));
  }
  NameSelection selection;
  selection.include.assign(query.include().begin(), query.include().end());
  selection.exclude.assign(query.exclude().begin(), query.exclude().end());
  return selection;
}

absl::StatusOr<DType> ServedDType(DType kept, std::optional<DType> wanted,
                                  const std::string& parameter) {
  // Fewer bits are served, never bits that are not there.
  if (!wanted.has_value() || *wanted == kept || *wanted == DType::kFp32 || IsHalf(*wanted))
    return wanted.value_or(kept);
  return absl::InvalidArgumentError(absl::StrCat("parameter '", parameter, "' is kept in ",
                                                 Name(kept), ": it cannot be read as ",
                                                 Name(*wanted)));
}

std::vector<int> SelectParameters(const LivePlan& plan, const NameSelection& selection) {
  std::vector<int> selected;
  int number = 0;
  for (const UnitLayout& unit : plan.layout->units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      // Tied weights are one parameter, which a pattern finds by any of its names.
      std::vector<std::string> names = {parameter.spec.name};
      const auto aliases = plan.aliases.find(parameter.spec.name);
      if (aliases != plan.aliases.end())
        names.insert(names.end(), aliases->second.begin(), aliases->second.end());
      if (IsWanted(selection, names)) selected.push_back(number);
      ++number;
    }
  }
  return selected;
}

v1::LiveTensorInfo BufferInfo(const LivePlan& plan, size_t tensor) {
  v1::LiveTensorInfo info;
  info.set_name(LiveTensorName(*plan.layout, plan.optimizer, plan.tensors[tensor]));
  info.set_array(v1::LIVE_STATE_ARRAY_BUFFER);
  for (const int64_t dimension : ShapeOf(*plan.layout, plan.tensors[tensor]))
    info.add_shape(dimension);
  info.set_parameter(info.name());
  info.set_stored_dtype(std::string(Name(plan.dtypes[tensor])));
  return info;
}

}  // namespace

int64_t LivePlan::SizeBytesOf(size_t tensor) const {
  if (tensors[tensor].array == LiveArray::kBuffer)
    return SizeBytes(BufferOf(*layout, tensors[tensor])).value_or(0);  // It was checked long ago.
  return ParameterOf(*layout, tensors[tensor]).numel * ElementBytesOf(tensor);
}

int64_t LivePlan::TotalBytes() const {
  int64_t size_bytes = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) size_bytes += SizeBytesOf(tensor);
  return size_bytes;
}

v1::LiveTensorInfo LivePlan::InfoOf(size_t number) const {
  const LiveTensor& tensor = tensors[number];
  if (tensor.array == LiveArray::kBuffer) return BufferInfo(*this, number);
  v1::LiveTensorInfo info;
  info.set_array(EncodeLiveArray(tensor.array));
  info.set_dtype(EncodeDType(LayoutDType(dtypes[number]).value_or(DType::kFp32)));
  const TensorSpec& spec = ParameterOf(*layout, tensor).spec;
  info.set_name(LiveTensorName(*layout, optimizer, tensor));
  info.set_parameter(spec.name);
  info.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
  const auto group = param_groups.find(spec.name);
  // All others are in group 0, which is also what the field says where it is not set.
  if (group != param_groups.end()) info.set_param_group(group->second);
  const auto others = aliases.find(spec.name);
  if (others == aliases.end() || tensor.array != LiveArray::kParameter) return info;
  for (const std::string& alias : others->second) info.add_aliases(alias);
  return info;
}

absl::StatusOr<LivePlan> PlanLiveRead(const ModelSpec& model, const JobConfig& config,
                                      const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(ModelLayout layout, LayOut(model, config));
  return PlanLiveRead(config, std::make_shared<const ModelLayout>(std::move(layout)), query);
}

absl::StatusOr<LivePlan> PlanLiveRead(const JobConfig& config,
                                      std::shared_ptr<const ModelLayout> layout,
                                      const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(const NameSelection selection, SelectionOf(query));
  std::optional<DType> wanted;
  if (query.dtype() != v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(wanted, DecodeDType(query.dtype()));
  }
  LivePlan plan;
  plan.layout = std::move(layout);
  plan.optimizer = config.optimizer;
  for (size_t group = 0; group < config.groups.size(); ++group) {
    for (const std::string& name : config.groups[group].parameter_names)
      plan.param_groups.emplace(name, static_cast<int>(group));
  }
  for (const UnitLayout& unit : plan.layout->units) {
    for (const Alias& alias : unit.flat.aliases())
      plan.aliases[alias.primary].push_back(alias.name);
  }
  plan.parameters = SelectParameters(plan, selection);
  for (size_t i = 0; query.buffers() && i < plan.layout->buffers.size(); ++i) {
    if (IsWanted(selection, {plan.layout->buffers[i].name})) plan.buffers.push_back(i);
  }
  if (plan.parameters.empty() && plan.buffers.empty())
    return absl::NotFoundError("no parameter's name matches the patterns");
  plan.moments = query.moments();
  ASSIGN_OR_RETURN(plan.tensors, LiveTensors(*plan.layout, plan.optimizer, plan.parameters,
                                             plan.moments, plan.buffers));
  for (const LiveTensor& tensor : plan.tensors) {
    if (tensor.array == LiveArray::kBuffer) {
      plan.dtypes.push_back(BufferOf(*plan.layout, tensor).dtype);
      continue;
    }
    ASSIGN_OR_RETURN(const DType dtype,
                     ServedDType(plan.layout->units[tensor.unit].full_dtype(), wanted,
                                 ParameterOf(*plan.layout, tensor).spec.name));
    plan.dtypes.push_back(StoredAs(dtype));
  }
  return plan;
}

absl::Status CheckLiesAsAskedFor(const LivePlan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const LiveTensor& tensor = plan.tensors[i];
    if (tensor.array == LiveArray::kBuffer) continue;
    const DType kept = plan.layout->units[tensor.unit].full_dtype();
    if (plan.dtypes[i] == StoredAs(kept)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter '", ParameterOf(*plan.layout, tensor).spec.name, "' is kept in ",
                     Name(kept), ": in ", Name(plan.dtypes[i]), " it can be fetched, not mapped"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
