#include "client/torch/unit_lookup.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

std::vector<int> UnitsBelow(const ModuleUnits& units, const torch::nn::Module& module,
                            bool recurse) {
  std::vector<int> found;
  const auto add = [&](const std::vector<int>& more) {
    for (const int unit : more) {
      if (std::find(found.begin(), found.end(), unit) == found.end()) found.push_back(unit);
    }
  };
  const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
  for (size_t unit = 0; unit < units.modules.size(); ++unit) {
    const auto& modules = units.modules[unit];
    if (std::find(modules.begin(), modules.end(), sharded) != modules.end())
      add({static_cast<int>(unit)});
  }
  if (!recurse) return found;
  for (const auto& child : module.children()) add(UnitsBelow(units, *child, recurse));
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
  const std::vector<int> found = UnitsBelow(units, module, /*recurse=*/false);
  if (!found.empty()) return found[0];
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is no unit of this model"));
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
