// A model's state under its own names, in memory. Plain values; thread-compatible.
//
//   FULL      "1.weight"         the tensor, on every rank or on rank 0 alone
//   SHARDED   "1.weight"         rows [8, 16) of 16: what this rank has of each parameter
//   LOCAL     "1._flat_param"    elements [96, 184) of 184: what it has of each unit
//
// A rank's shard is a range of a unit's flat parameter and knows no rows. So rows are made for the
// user: each unit is read whole, one after the other, and cut as torch.chunk does along dimension
// 0 over the ranks that shard the unit: ceil(rows / ranks) each, fewer or none at the end. A
// parameter without dimensions has no rows, and is whole on every rank. The flat part is the shard
// itself without its padding: the parts of all ranks, concatenated, are the unit's parameters,
// concatenated. In the same way SHARDED's concatenation is the parameter; for another number of
// ranks, cut it again. Units that shard nothing (NO_SHARD, or one rank alone) are
// whole in SHARDED, and LOCAL is refused.
// Source: state dict types of torch/distributed/fsdp/api.py and _state_dict_utils.py.
#ifndef TESSERA_TORCH_STATE_DICT_H_
#define TESSERA_TORCH_STATE_DICT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

struct ModuleUnits;

enum class StateDictType { kFull, kSharded, kLocal };

const char* Name(StateDictType type);  // "FULL_STATE_DICT", ...

struct StateEntry {
  enum class Kind { kWhole, kRows, kFlat };

  static StateEntry Whole(torch::Tensor tensor);

  torch::Tensor tensor;
  Kind kind = Kind::kWhole;
  // Of what `tensor` is a part; its own where it is whole.
  std::vector<int64_t> shape;
  int64_t begin = 0;  // Rows (kRows) or elements (kFlat) before it.
};

// In the order of the module tree: of each module its parameters, then its buffers.
using StateDict = torch::OrderedDict<std::string, StateEntry>;

// This chunk of a whole tensor of one or more dimensions; a copy.
StateEntry RowsEntry(const torch::Tensor& whole, int64_t num_chunks, int64_t chunk);

// --- Types ---
//
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
  explicit StateDictTypes(const ModuleUnits* units);

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

#endif  // TESSERA_TORCH_STATE_DICT_H_
