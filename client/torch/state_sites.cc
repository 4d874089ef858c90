#include "client/torch/state_sites.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/torch/module_units.h"
#include "layout/model_layout.h"

namespace tessera {
namespace {

struct Place {
  int unit = -1;
  int parameter = -1;
};

// By name in the model, aliases too.
std::unordered_map<std::string, Place> PlacesOf(const ModelLayout& layout) {
  std::unordered_map<std::string, Place> places;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const FlatLayout& flat = layout.units[unit].flat;
    for (size_t p = 0; p < flat.parameters().size(); ++p)
      places[flat.parameters()[p].spec.name] = {static_cast<int>(unit), static_cast<int>(p)};
    // Tied names are one place.
    for (const Alias& alias : flat.aliases()) places[alias.name] = places[alias.primary];
  }
  return places;
}

}  // namespace

absl::StatusOr<std::string> PrefixOf(const ShardedModel& model, const torch::nn::Module& module) {
  for (const auto& item : model.root().named_modules()) {
    if (item.value().get() != &module) continue;
    return item.key().empty() ? "" : absl::StrCat(item.key(), ".");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is not in the tree of this model"));
}

absl::StatusOr<std::vector<StateSite>> SitesOf(ShardedModel* model,
                                               const torch::nn::Module& module) {
  const absl::StatusOr<std::string> prefix = PrefixOf(*model, module);
  if (!prefix.ok()) return prefix.status();
  const std::unordered_map<std::string, Place> places = PlacesOf(model->session().layout());
  std::vector<StateSite> sites;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto place = places.find(name);
    if (place == places.end()) {
      sites.push_back({name.substr(prefix->size()), -1, -1, tensor});
    } else {
      // The values of a unit's parameter are in the cluster, so it needs no tensor.
      sites.push_back({name.substr(prefix->size()), place->second.unit, place->second.parameter});
    }
  };
  for (const auto& item : model->root().named_modules()) {
    const std::string of_module = item.key().empty() ? "" : absl::StrCat(item.key(), ".");
    if (!absl::StartsWith(of_module, *prefix)) continue;
    for (const auto& parameter : item.value()->named_parameters(/*recurse=*/false))
      add(of_module + parameter.key(), parameter.value());
    for (const auto& buffer : item.value()->named_buffers(/*recurse=*/false))
      add(of_module + buffer.key(), buffer.value());
  }
  return sites;
}

std::vector<int> UnitsOfSites(const std::vector<StateSite>& sites) {
  std::vector<int> units;
  for (const StateSite& site : sites) {
    if (site.unit >= 0) units.push_back(site.unit);
  }
  // In the order of all ranks, because reading the units is collective.
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

std::string FlatKeyOf(const ShardedModel& model, int unit, const std::string& prefix) {
  const bool is_root = unit == 0 && model.units().root_is_unit;
  const std::string key =
      is_root ? "_flat_param" : absl::StrCat(model.units().model.units[unit].name, "._flat_param");
  return absl::StartsWith(key, prefix) ? key.substr(prefix.size()) : key;
}

}  // namespace tessera
