#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_units.h"
#include "client/torch/unit_lookup.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

// The variants' alternatives are in the order of the types.
absl::Status CheckConfig(StateDictType type, size_t index, const char* of) {
  if (index == static_cast<size_t>(type)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected a config of ", Name(type), " for the state dict of the ", of,
                   ", but got one of ", Name(static_cast<StateDictType>(index))));
}

absl::Status CheckConfigs(const StateDictSettings& settings) {
  if (settings.model.has_value())
    RETURN_IF_ERROR(CheckConfig(settings.type, settings.model->index(), "model"));
  if (settings.optimizer.has_value())
    RETURN_IF_ERROR(CheckConfig(settings.type, settings.optimizer->index(), "optimizer"));
  return absl::OkStatus();
}

template <typename Full, typename Config>
bool Rank0Only(const std::optional<Config>& config) {
  const Full* full = config.has_value() ? std::get_if<Full>(&*config) : nullptr;
  return full != nullptr && full->rank0_only;
}

template <typename Config>
bool Offloads(const std::optional<Config>& config, bool by_default) {
  if (!config.has_value()) return by_default;
  return std::visit([](const auto& of_type) { return of_type.offload_to_cpu; }, *config);
}

}  // namespace

bool StateDictSettings::model_rank0_only() const { return Rank0Only<FullStateDictConfig>(model); }
bool StateDictSettings::model_offload_to_cpu() const { return Offloads(model, false); }
bool StateDictSettings::optimizer_rank0_only() const {
  return Rank0Only<FullOptimStateDictConfig>(optimizer);
}

bool operator==(const StateDictSettings& a, const StateDictSettings& b) {
  // The optimizer's default depends on the type.
  const bool offloads = a.type != StateDictType::kLocal;
  return a.type == b.type && a.model_rank0_only() == b.model_rank0_only() &&
         a.model_offload_to_cpu() == b.model_offload_to_cpu() &&
         a.optimizer_rank0_only() == b.optimizer_rank0_only() &&
         Offloads(a.optimizer, offloads) == Offloads(b.optimizer, offloads);
}

StateDictTypes::StateDictTypes(const ModuleUnits* units)
    : units_(units), of_(units->modules.size()) {}

absl::StatusOr<StateDictSettings> StateDictTypes::Get(const torch::nn::Module& module) const {
  ASSIGN_OR_RETURN(const std::vector<int> units, SomeUnitsBelow(*units_, module, /*recurse=*/true));
  for (const int unit : units) {
    if (of_[unit] == of_[units[0]]) continue;
    const auto& names = units_->model.units;
    return absl::InvalidArgumentError(
        absl::StrCat("the units at and below a module must have the same state dict settings: '",
                     names[units[0]].name, "' has ", Name(of_[units[0]].type), ", '",
                     names[unit].name, "' has ", Name(of_[unit].type), " or another config"));
  }
  return of_[units[0]];
}

absl::StatusOr<StateDictSettings> StateDictTypes::Set(const torch::nn::Module& module,
                                                      const StateDictSettings& settings) {
  RETURN_IF_ERROR(CheckConfigs(settings));
  // One value is enough to restore all units: Get has checked that they have the same.
  ASSIGN_OR_RETURN(const StateDictSettings before, Get(module));
  for (const int unit : UnitsBelow(*units_, module, /*recurse=*/true)) of_[unit] = settings;
  return before;
}

absl::StatusOr<std::unique_ptr<StateDictTypes::Scope>> StateDictTypes::Use(
    const torch::nn::Module& module, const StateDictSettings& settings) {
  ASSIGN_OR_RETURN(StateDictSettings before, Set(module, settings));
  return std::make_unique<Scope>(this, UnitsBelow(*units_, module, /*recurse=*/true),
                                 std::move(before));
}

StateDictTypes::Scope::~Scope() {
  for (const int unit : units_) types_->of_[unit] = before_;
}

}  // namespace tessera
