// Of which type the state dicts of a module tree are, and how they are made.
//
//   StateDictTypes types(&sharded->units());
//   types.Set(root, {StateDictType::kSharded});        returns what it was
//   {
//     auto scope = types.Use(root, {StateDictType::kFull, FullStateDictConfig{true, true}});
//     ...
//   }                                                  SHARDED again
//
// Each unit has settings of its own, FULL to begin with; a call is about the units at and below a
// module, which must have the same. Thread-compatible; the units outlive this.
// Source: StateDictSettings and set_state_dict_type of torch/distributed/fsdp.
#ifndef TESSERA_CLIENT_TORCH_STATE_DICT_SETTINGS_H_
#define TESSERA_CLIENT_TORCH_STATE_DICT_SETTINGS_H_

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/libtorch.h"
#include "client/torch/module_units.h"
#include "client/torch/state_dict.h"

namespace tessera {

// `offload_to_cpu`: tensors on another device are copied to the host. Parameters and moments are
// there anyway. `rank0_only`: the dictionaries of other ranks are empty.
struct FullStateDictConfig {
  bool offload_to_cpu = false;
  bool rank0_only = false;
};
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
};
struct LocalStateDictConfig {
  bool offload_to_cpu = false;
};
struct FullOptimStateDictConfig {
  bool offload_to_cpu = true;
  bool rank0_only = false;
};
struct ShardedOptimStateDictConfig {
  bool offload_to_cpu = true;
};
struct LocalOptimStateDictConfig {
  bool offload_to_cpu = false;
};

using StateDictConfig =
    std::variant<FullStateDictConfig, ShardedStateDictConfig, LocalStateDictConfig>;
using OptimStateDictConfig =
    std::variant<FullOptimStateDictConfig, ShardedOptimStateDictConfig, LocalOptimStateDictConfig>;

struct StateDictSettings {
  StateDictType type = StateDictType::kFull;
  // Of this type; none: its defaults.
  std::optional<StateDictConfig> model = std::nullopt;
  std::optional<OptimStateDictConfig> optimizer = std::nullopt;

  bool model_rank0_only() const;
  bool model_offload_to_cpu() const;
  bool optimizer_rank0_only() const;
};
// With what they mean, defaults or not.
bool operator==(const StateDictSettings& a, const StateDictSettings& b);

class StateDictTypes {
 public:
  explicit StateDictTypes(const ModuleUnits* units) : units_(units), of_(units->modules.size()) {}

  // Returns what it was. Errors: as Get, and nothing is set then; InvalidArgument  a config is of
  // another type than `settings.type`.
  absl::StatusOr<StateDictSettings> Set(const torch::nn::Module& module,
                                        const StateDictSettings& settings);
  // Errors: InvalidArgument  no unit is at or below the module; units there have different ones.
  absl::StatusOr<StateDictSettings> Get(const torch::nn::Module& module) const;

  // Sets; what it was comes back with the end of the result. Errors: as Set.
  class Scope {
   public:
    Scope(StateDictTypes* types, std::vector<int> units, StateDictSettings before)
        : types_(types), units_(std::move(units)), before_(std::move(before)) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StateDictTypes* const types_;
    const std::vector<int> units_;
    const StateDictSettings before_;
  };
  absl::StatusOr<std::unique_ptr<Scope>> Use(const torch::nn::Module& module,
                                             const StateDictSettings& settings);

 private:
  const ModuleUnits* const units_;
  std::vector<StateDictSettings> of_;  // By unit.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_DICT_SETTINGS_H_
