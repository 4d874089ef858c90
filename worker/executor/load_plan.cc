#include "worker/executor/load_plan.h"

#include <algorithm>
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

}  // namespace

absl::StatusOr<LoadPlan> PlanLoad(const TensorTable& stored, const ModelLayout& layout,
                                  bool strict) {
  LoadPlan plan;
  std::set<std::string> known;
  for (const UnitLayout& unit : layout.units) {
    std::vector<std::string>& of_unit = plan.tensors.emplace_back();
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      std::vector<std::string> names = {parameter.spec.name};
      for (const Alias& alias : unit.flat.aliases()) {
        if (alias.primary == parameter.spec.name) names.push_back(alias.name);
      }
      std::string& from = of_unit.emplace_back();
      for (const std::string& name : names) {
        known.insert(name);
        const auto tensor = stored.find(name);
        if (tensor == stored.end()) continue;
        RETURN_IF_ERROR(CheckTensor(name, tensor->second, parameter.spec));
        if (from.empty()) from = name;
      }
      if (from.empty()) plan.missing.push_back(parameter.spec.name);
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (known.count(name) == 0) plan.unexpected.push_back(name);
  }
  if (strict) RETURN_IF_ERROR(CheckStrict(plan));
  return plan;
}

}  // namespace tessera
