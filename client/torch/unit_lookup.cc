#include "client/torch/unit_lookup.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

namespace {

// `seen`: by unit: it was found.
void AddUnitsBelow(const ModuleUnits& units, const torch::nn::Module& module, bool recurse,
                   std::vector<bool>* seen, std::vector<int>* found) {
  const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
  const auto unit = units.unit_of_module.find(sharded);
  // A module that is registered twice is one unit.
  if (unit != units.unit_of_module.end() && !(*seen)[unit->second]) {
    (*seen)[unit->second] = true;
    found->push_back(unit->second);
  }
  if (!recurse) return;
  for (const auto& child : module.children()) AddUnitsBelow(units, *child, recurse, seen, found);
}

}  // namespace

std::vector<int> UnitsBelow(const ModuleUnits& units, const torch::nn::Module& module,
                            bool recurse) {
  std::vector<bool> seen(units.modules.size());
  std::vector<int> found;
  AddUnitsBelow(units, module, recurse, &seen, &found);
  return found;
}

absl::StatusOr<std::vector<int>> SomeUnitsBelow(const ModuleUnits& units,
                                                const torch::nn::Module& module, bool recurse) {
  std::vector<int> found = UnitsBelow(units, module, recurse);
  if (!found.empty()) return found;
  return absl::InvalidArgumentError(absl::StrCat("no unit of this model ",
                                                 recurse ? "is at or below" : "is", " module '",
                                                 module.name(), "'"));
}

absl::StatusOr<int> UnitOf(const ModuleUnits& units, const torch::nn::Module& module) {
  const auto found = units.unit_of_module.find(dynamic_cast<const ShardedBase*>(&module));
  if (found != units.unit_of_module.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is not a unit of this model"));
}

absl::StatusOr<std::vector<int>> UnitsOf(const ModuleUnits& units,
                                         const std::vector<const torch::nn::Module*>& modules) {
  std::vector<int> found;
  for (const torch::nn::Module* module : modules) {
    if (module == nullptr) return absl::InvalidArgumentError("a module of the list is null");
    ASSIGN_OR_RETURN(found.emplace_back(), UnitOf(units, *module));
  }
  return found;
}

}  // namespace tessera
