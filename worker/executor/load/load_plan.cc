#include "worker/executor/load/load_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckTensor(const std::string& name, const TensorInfo& stored,
                         const TensorSpec& spec) {
  if (stored.shape != spec.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' is [", absl::StrJoin(stored.shape, ", "),
                     "], parameter '", spec.name, "' is [", absl::StrJoin(spec.shape, ", "), "]"));
  }
  const std::optional<DType> dtype = LayoutDType(stored.dtype);
  if (dtype.has_value() && IsFloatingPoint(*dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' is ", Name(stored.dtype),
                                                 ", parameter '", spec.name, "' is ",
                                                 Name(spec.dtype)));
}

std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 12;
  const std::vector<std::string> some(names.begin(),
                                      names.begin() + std::min(names.size(), kMaxNames));
  const size_t more = names.size() - some.size();
  return absl::StrCat("'", absl::StrJoin(some, "', '"), "'",
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

absl::Status CheckStrict(const LoadPlan& plan) {
  if (plan.missing.empty() && plan.unexpected.empty()) return absl::OkStatus();
  std::vector<std::string> parts;
  if (!plan.missing.empty()) parts.push_back(absl::StrCat("it lacks ", SomeOf(plan.missing)));
  if (!plan.unexpected.empty())
    parts.push_back(absl::StrCat("the model lacks ", SomeOf(plan.unexpected)));
  return absl::InvalidArgumentError(absl::StrJoin(parts, "; "));
}

// A pattern that matches nothing is a slip: what was meant would silently stay as it is.
absl::Status CheckPatterns(const std::vector<std::string>& include, const ModelLayout& layout,
                           const std::vector<NamedTensorInfo>& buffers) {
  for (const std::string& pattern : include) {
    bool matches = false;
    for (const NamedTensorInfo& buffer : buffers)
      matches |= IsWanted({{}, {pattern}, {}}, {buffer.name});
    for (const UnitLayout& unit : layout.units) {
      for (const PlacedParameter& parameter : unit.flat.parameters())
        matches |= IsWanted({{}, {pattern}, {}}, NamesOf(unit, parameter.spec.name));
    }
    if (!matches) {
      return absl::InvalidArgumentError(
          absl::StrCat("no parameter of the model matches '", pattern, "', which is to be loaded"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> InFile(const TensorTable& stored,
                                                          const LoadRules& rules) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : stored) names.push_back(name);
  return NamesInModel(names, rules.names.renames);
}

bool IsFloat(StoredDType dtype) {
  const std::optional<DType> known = LayoutDType(dtype);
  return known.has_value() && IsFloatingPoint(*known);
}

absl::Status PlanBuffers(const TensorTable& stored,
                         const std::map<std::string, std::string>& in_file,
                         const std::vector<NamedTensorInfo>& buffers, const LoadRules& rules,
                         LoadPlan* plan) {
  for (const NamedTensorInfo& buffer : buffers) {
    if (!IsWanted(rules.names, {buffer.name})) continue;
    const auto found = in_file.find(buffer.name);
    if (found == in_file.end()) {
      plan->missing.push_back(buffer.name);
      continue;
    }
    const TensorInfo& info = stored.at(found->second);
    const bool fits =
        info.dtype == buffer.info.dtype || (IsFloat(info.dtype) && IsFloat(buffer.info.dtype));
    if (!fits || info.shape != buffer.info.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", found->second, "' is ", Name(info.dtype), " [",
                       absl::StrJoin(info.shape, ", "), "], wanted is ", Name(buffer.info.dtype),
                       " [", absl::StrJoin(buffer.info.shape, ", "), "]"));
    }
    plan->buffers.push_back({buffer, found->second});
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> NamesOf(const UnitLayout& unit, const std::string& parameter) {
  std::vector<std::string> names = {parameter};
  for (const Alias& alias : unit.flat.aliases()) {
    if (alias.primary == parameter) names.push_back(alias.name);
  }
  return names;
}

absl::StatusOr<LoadPlan> PlanLoad(const TensorTable& stored, const ModelLayout& layout,
                                  const LoadRules& rules,
                                  const std::vector<NamedTensorInfo>& buffers) {
  RETURN_IF_ERROR(CheckPatterns(rules.names.include, layout, buffers));
  ASSIGN_OR_RETURN(const auto in_file, InFile(stored, rules));
  LoadPlan plan;
  std::set<std::string> known;
  for (const UnitLayout& unit : layout.units) {
    std::vector<std::string>& of_unit = plan.tensors.emplace_back();
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      const std::vector<std::string> names = NamesOf(unit, parameter.spec.name);
      // Also of what is left out: another of its names may be wanted by itself.
      known.insert(names.begin(), names.end());
      std::string& from = of_unit.emplace_back();
      if (!IsWanted(rules.names, names)) {
        plan.left_out.push_back(parameter.spec.name);
        continue;
      }
      // Aliases share one storage. All that are stored must fit, the first is read.
      for (const std::string& name : names) {
        const auto found = in_file.find(name);
        if (found == in_file.end()) continue;
        const std::string& tensor = found->second;
        RETURN_IF_ERROR(CheckTensor(tensor, stored.at(tensor), parameter.spec));
        if (from.empty()) from = tensor;
      }
      if (from.empty()) plan.missing.push_back(parameter.spec.name);
    }
  }
  for (const NamedTensorInfo& buffer : buffers) known.insert(buffer.name);
  RETURN_IF_ERROR(PlanBuffers(stored, in_file, buffers, rules, &plan));
  // In the order of names, so that every rank reports the same.
  for (const auto& [name, tensor] : in_file) {
    if (known.count(name) == 0 && IsWanted(rules.names, {name})) plan.unexpected.push_back(tensor);
  }
  if (rules.strict) RETURN_IF_ERROR(CheckStrict(plan));
  return plan;
}

absl::Status CheckGivesAll(const LoadPlan& plan) {
  if (plan.left_out.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the job has no values yet, so all must be loaded, but these are left out: ",
                   SomeOf(plan.left_out)));
}

}  // namespace tessera
