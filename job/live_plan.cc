#include "job/live_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/name_selection.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "layout/unit_parts.h"

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

v1::LiveStateArray EncodeArray(LiveArray array) {
  switch (array) {
    case LiveArray::kParameter:
      return v1::LIVE_STATE_ARRAY_PARAMETER;
    case LiveArray::kFirstMoment:
      return v1::LIVE_STATE_ARRAY_FIRST_MOMENT;
    case LiveArray::kSecondMoment:
      return v1::LIVE_STATE_ARRAY_SECOND_MOMENT;
    case LiveArray::kBuffer:
      return v1::LIVE_STATE_ARRAY_BUFFER;
  }
  return v1::LIVE_STATE_ARRAY_UNSPECIFIED;
}

// What a unit's flat part is called, as in a state dict.
std::string FlatKeyOf(const UnitLayout& unit) {
  const std::string& name = unit.flat.unit_name();
  const std::vector<PlacedParameter>& parameters = unit.flat.parameters();
  const bool is_below_root =
      std::all_of(parameters.begin(), parameters.end(), [](const PlacedParameter& parameter) {
        return absl::StartsWith(parameter.spec.name, "root.");
      });
  return name == "root" && !is_below_root ? "_flat_param" : absl::StrCat(name, "._flat_param");
}

// Of kLocal all of a unit's, by its name.
std::vector<int> SelectParameters(const LivePlan& plan, const NameSelection& selection) {
  std::vector<int> selected;
  int number = 0;
  for (const UnitLayout& unit : plan.layout->units) {
    const bool is_local = plan.part.form == LiveForm::kLocal;
    const bool takes_unit = is_local && IsWanted(selection, {FlatKeyOf(unit)});
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      std::vector<std::string> names = {parameter.spec.name};
      const auto aliases = plan.aliases.find(parameter.spec.name);
      if (aliases != plan.aliases.end())
        names.insert(names.end(), aliases->second.begin(), aliases->second.end());
      if (is_local ? takes_unit : IsWanted(selection, names)) selected.push_back(number);
      ++number;
    }
  }
  return selected;
}

absl::StatusOr<LivePartOf> PartOf(const v1::LiveStateQuery& query, const JobConfig& config) {
  LivePartOf part;
  switch (query.form()) {
    case v1::LIVE_STATE_FORM_FULL:
      if (query.rank() == 0) return part;
      return absl::InvalidArgumentError("a rank's part exists only in the forms SHARDED and LOCAL");
    case v1::LIVE_STATE_FORM_SHARDED:
      part.form = LiveForm::kSharded;
      break;
    case v1::LIVE_STATE_FORM_LOCAL:
      part.form = LiveForm::kLocal;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("an unknown form ", query.form()));
  }
  RETURN_IF_ERROR(CheckRange("rank", query.rank(), 0, config.world_size - 1));
  part.rank = query.rank();
  return part;
}

absl::Status CheckHasFlatParts(const LivePlan& plan) {
  for (const LiveTensor& tensor : plan.tensors) {
    if (tensor.array == LiveArray::kBuffer || !ShardsNothing(plan.layout->units[tensor.unit]))
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat("LOCAL is only of units that are sharded: unit '",
                     plan.layout->units[tensor.unit].flat.unit_name(), "' is whole on every rank"));
  }
  return absl::OkStatus();
}

// Where another entry begins.
bool BeginsEntry(const LivePlan& plan, size_t tensor) {
  if (tensor == 0 || plan.part.form != LiveForm::kLocal) return true;
  const LiveTensor &it = plan.tensors[tensor], &before = plan.tensors[tensor - 1];
  return it.array == LiveArray::kBuffer || it.array != before.array || it.unit != before.unit;
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

// The shape of a parameter or moment, or of the part of it that is asked for.
void SetShape(const LivePlan& plan, const LiveTensor& tensor, v1::LiveTensorInfo* info) {
  const UnitLayout& unit = plan.layout->units[tensor.unit];
  const std::vector<int64_t>& shape = ShapeOf(*plan.layout, tensor);
  info->mutable_shape()->Add(shape.begin(), shape.end());
  if (plan.part.form != LiveForm::kSharded || ShardsNothing(unit) || shape.empty()) return;
  const int64_t chunks = unit.shards.num_shards();
  const ElementRange rows = RowsOf(shape[0], chunks, plan.part.rank % chunks);
  info->set_shape(0, rows.size());
  info->mutable_part()->mutable_whole_shape()->Add(shape.begin(), shape.end());
  info->mutable_part()->set_begin(rows.begin);
}

}  // namespace

size_t LivePlan::EntryOf(size_t tensor) const {
  return std::upper_bound(entries.begin(), entries.end(), tensor) - entries.begin() - 1;
}

int64_t LivePlan::SizeBytesOf(size_t entry) const {
  if (FirstOf(entry).array == LiveArray::kBuffer)
    return SizeBytes(BufferOf(*layout, FirstOf(entry))).value_or(0);  // It was checked long ago.
  int64_t numel = 0;
  for (size_t tensor = entries[entry]; tensor < entries[entry + 1]; ++tensor)
    numel += tensors[tensor].part.size();
  return numel * ElementBytesOf(entries[entry]);
}

int64_t LivePlan::TotalBytes() const {
  int64_t size_bytes = 0;
  for (size_t entry = 0; entry < num_entries(); ++entry) size_bytes += SizeBytesOf(entry);
  return size_bytes;
}

v1::LiveTensorInfo LivePlan::InfoOf(size_t entry) const {
  const size_t first = entries[entry];
  const LiveTensor& tensor = tensors[first];
  if (tensor.array == LiveArray::kBuffer) return BufferInfo(*this, first);
  v1::LiveTensorInfo info;
  info.set_array(EncodeArray(tensor.array));
  info.set_dtype(EncodeDType(LayoutDType(dtypes[first]).value_or(DType::kFp32)));
  if (part.form == LiveForm::kLocal) {
    const UnitLayout& unit = layout->units[tensor.unit];
    info.set_parameter(FlatKeyOf(unit));
    info.set_name(tensor.array == LiveArray::kParameter
                      ? info.parameter()
                      : MomentTensorName(info.parameter(), optimizer, tensor.array));
    info.add_shape(SizeBytesOf(entry) / ElementBytesOf(first));
    info.mutable_part()->add_whole_shape(unit.flat.unpadded_numel());
    const ElementRange slice = unit.shards.RangeOf(Rank(part.rank % unit.shards.num_shards()));
    info.mutable_part()->set_begin(ElementsBefore(unit, slice));
    return info;
  }
  const TensorSpec& spec = ParameterOf(*layout, tensor).spec;
  info.set_name(LiveTensorName(*layout, optimizer, tensor));
  info.set_parameter(spec.name);
  SetShape(*this, tensor, &info);
  const auto group = param_groups.find(spec.name);
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
  ASSIGN_OR_RETURN(plan.part, PartOf(query, config));
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
    return absl::NotFoundError(plan.part.form == LiveForm::kLocal
                                   ? "no unit's flat part has a name that matches the patterns"
                                   : "no parameter's name matches the patterns");
  plan.moments = query.moments();
  ASSIGN_OR_RETURN(plan.tensors, LiveTensors(*plan.layout, plan.optimizer, plan.parameters,
                                             plan.moments, plan.buffers, plan.part));
  if (plan.part.form == LiveForm::kLocal) RETURN_IF_ERROR(CheckHasFlatParts(plan));
  for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    if (BeginsEntry(plan, tensor)) plan.entries.push_back(tensor);
  }
  plan.entries.push_back(plan.tensors.size());
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
  if (plan.part.form != LiveForm::kFull) {
    return absl::FailedPreconditionError(
        "a rank's part (SHARDED, LOCAL) can be fetched, not mapped");
  }
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

absl::Status AddExtents(const LivePlan& plan, const std::vector<int>& source_of_rank,
                        std::vector<v1::LiveTensorInfo>* tensors) {
  return ForEachLiveSlice(*plan.layout, plan.tensors, 0, static_cast<int>(source_of_rank.size()),
                          [&](const LiveSlice& slice) {
                            // Slices come in order, so neighbours of one source join.
                            const int source = source_of_rank[slice.rank];
                            auto* extents =
                                (*tensors)[plan.EntryOf(slice.tensor)].mutable_extents();
                            if (extents->empty() || extents->rbegin()->source() != source)
                              extents->Add()->set_source(source);
                            extents->rbegin()->set_numel(extents->rbegin()->numel() + slice.numel);
                            return absl::OkStatus();
                          });
}

absl::StatusOr<std::vector<v1::LiveTensorInfo>> InfosWithExtents(
    const LivePlan& plan, const std::vector<int>& source_of_rank) {
  std::vector<v1::LiveTensorInfo> infos;
  for (size_t entry = 0; entry < plan.num_entries(); ++entry) infos.push_back(plan.InfoOf(entry));
  RETURN_IF_ERROR(AddExtents(plan, source_of_rank, &infos));
  return infos;
}

}  // namespace tessera
