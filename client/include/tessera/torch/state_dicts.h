// A model's state under its own names, in memory. The entries are plain values;
// thread-compatible.
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
#ifndef TESSERA_TORCH_STATE_DICTS_H_
#define TESSERA_TORCH_STATE_DICTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

struct ModuleUnits;
struct StateSite;

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

// --- StateDicts ---
//
// The state of an attached model as a dictionary in memory, and back.
//
//   StateDicts states(sharded.get());
//   states.types().Set(*model, {StateDictType::kFull, FullStateDictConfig{true, true}});
//   StateDict dict = *states.Get(*model);              rank 0: everything; the others: nothing
//   states.Load(*model, dict, {.from_rank0 = true});   all ranks have rank 0's
//
// Keys are those of the same module unattached, aliases of tied parameters included; LOCAL has one
// for each unit in place of its parameters'. Parameters are copies in the dtype that the module had
// before it was attached, which is full precision, whatever it computes in. Buffers and ignored
// parameters are this rank's own and whole, whatever the type, buffers in their original dtype: the
// module's memory, as in libtorch, but for buffers that are cast. Memory: what the dictionary holds
// and a unit; of Load, this rank's shards and a unit.
//
// Collective: all ranks make the same calls, with settings alike, between steps; Get also within
// RunStep before the first gradient. Where another rank's process dies, both are repeated in the
// next epoch. One thread, the trainer's. The model outlives this.

struct LoadStateOptions {
  // Keys that are missing or unexpected are an error. Otherwise what is missing stays as it is.
  bool strict = true;
  // Of FULL: rank 0's dictionary is everybody's, other ranks' are not looked at. Else each rank
  // takes its shard from its own, and all must have the same.
  bool from_rank0 = false;
};

struct LoadStateReport {
  std::vector<std::string> missing, unexpected;  // Keys.
};

class StateDicts {
 public:
  explicit StateDicts(ShardedModel* model) : model_(model), types_(&model->units()) {}

  // FULL of every unit to begin with.
  StateDictTypes& types() { return types_; }

  // Errors: InvalidArgument     as SitesOf and StateDictTypes::Get; LOCAL of a unit that shards
  //                             nothing, or that is around the module, named
  //         FailedPrecondition  in forward or backward, or while parameters are summoned
  //         others              Session::ReadParameters
  absl::StatusOr<StateDict> Get(const torch::nn::Module& module);

  // As the type of the module's units is. Sets everything on all ranks or nothing on any; an error
  // of one rank is every rank's.
  // Errors: NotFound            strict, and keys are missing or unexpected: all are named
  //         InvalidArgument     also: an entry of another shape, or that is another part than this
  //                             rank's, named; from_rank0 of another type than FULL
  //         FailedPrecondition  also: within RunStep; the ranks' dictionaries have different keys
  //         Unknown             what libtorch says of a tensor that it cannot convert
  //         others              Session::WriteParameters
  absl::StatusOr<LoadStateReport> Load(const torch::nn::Module& module, const StateDict& dict,
                                       const LoadStateOptions& options = {});

 private:
  absl::StatusOr<StateDict> TryGet(const torch::nn::Module& module,
                                   const std::vector<StateSite>& sites,
                                   const StateDictSettings& settings);
  // One entry for each parameter of the unit, or a single one of LOCAL.
  absl::StatusOr<std::vector<StateEntry>> ReadUnit(int unit, const StateDictSettings& settings);
  absl::Status CheckLocal(const torch::nn::Module& module,
                          const std::vector<StateSite>& sites) const;

  ShardedModel* const model_;
  StateDictTypes types_;
};

}  // namespace tessera

#endif  // TESSERA_TORCH_STATE_DICTS_H_
