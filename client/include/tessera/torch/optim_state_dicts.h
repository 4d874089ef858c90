// An optimizer's state under the names of the parameters, in memory. Plain values.
//
//   FULL, SHARDED   state["1.weight"]       exp_avg, exp_avg_sq as the model's entries, and a step
//   FLATTENED       state["1._flat_param"]  this rank's elements of them; LOCAL of the model
//
// Adam's and AdamW's moments are called "exp_avg" and "exp_avg_sq", SGD's "momentum_buffer", as in
// PyTorch. `step` is how often the parameter was updated, so it says of each parameter what PyTorch
// says; one that never was has no entry.
// Source: optimizer state dicts of torch/distributed/fsdp.
#ifndef TESSERA_TORCH_OPTIM_STATE_DICTS_H_
#define TESSERA_TORCH_OPTIM_STATE_DICTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/shard_optimizer.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

struct OptimParamState {
  std::map<std::string, StateEntry> moments;
  int64_t step = 0;
};

// How a group's optimizer trains otherwise than by its numbers. Where it is loaded it must be the
// same: else training would go on differently, and nobody would be told.
struct OptimFormula {
  bool decoupled_weight_decay = false;  // AdamW's; Adam's and SGD's is not.
  // SGD's; no optimizer of a job has them.
  bool nesterov = false;
  double dampening = 0;
};

struct OptimParamGroup {
  HyperParameters numbers;
  std::vector<std::string> params;      // Keys: names, or ids.
  std::optional<OptimFormula> formula;  // None: not known, and not checked.
};

// Of a job's optimizer.
OptimFormula FormulaOf(OptimizerKind optimizer);
// Whether a group with these numbers goes on the same by the formula `own` of group `index`.
// Errors: FailedPrecondition  it does not: the group and what differs are named.
absl::Status CheckFormula(const OptimParamGroup& group, const OptimFormula& own, size_t index);

struct OptimStateDict {
  torch::OrderedDict<std::string, OptimParamState> state;
  std::vector<OptimParamGroup> groups;
  // The job's last step; none: of an optimizer that counts none.
  std::optional<int64_t> last_step;
};

enum class OptimStateKeyType { kParamName, kParamId };

// The same with other keys. An id is a parameter's place in an optimizer's param groups, one group
// after the other: `names[id]` is its name.
// Errors: NotFound         a key that is not such a name or id, named
//         InvalidArgument  FLATTENED, whose keys are units.
absl::StatusOr<OptimStateDict> Rekey(const OptimStateDict& dict, OptimStateKeyType key_type,
                                     const std::vector<std::string>& names);

// The parameters of the groups, one group after the other: ids are indices into them.
std::vector<std::string> ParamsOf(const OptimStateDict& dict);

// --- libtorch's own Adam, AdamW and SGD; whole tensors ---

// By `names`, in the order of its parameters. Tensors are copies.
// Errors: InvalidArgument  not as many names as parameters; Unimplemented  another optimizer, or
//         amsgrad.
absl::StatusOr<OptimStateDict> OptimStateOf(const torch::optim::Optimizer& optimizer,
                                            const std::vector<std::string>& names);

// Replaces all of the optimizer's state, and its groups' numbers, SGD's nesterov and dampening too,
// if there are as many groups.
// Errors: also NotFound  a key outside all groups; InvalidArgument  an entry is of another shape
// or lacks a moment; FailedPrecondition  as CheckFormula. Nothing is set then.
absl::Status SetOptimState(const OptimStateDict& dict, const std::vector<std::string>& names,
                           torch::optim::Optimizer* optimizer);
// Whether that is possible; its errors.
absl::Status CheckOptimState(const OptimStateDict& dict, const std::vector<std::string>& names,
                             const torch::optim::Optimizer& optimizer);

// --- Of the job's optimizer ---
//
// The state of an attached model's own optimizer as a dictionary in memory, and back.
//
//   OptimStateDicts optim(sharded.get(), &states.types());
//   OptimStateDict dict = *optim.Get();                  FULL, SHARDED or FLATTENED, by the type
//   OptimStateDict flat = *optim.ToLoad(dict);           what this rank has of it, for this model
//   auto groups = *optim.Load(dict);                     the job continues from it
//   StepOptions step; step.groups = groups;              with its numbers
//
// Keyed by name, so world size, units and strategy may be others than those that saved. A parameter
// that the dictionary lacks has no state afterwards, as where a new one is given to an optimizer.
// With last_step the job's steps continue from there too; without, their number stays. Numbers of
// param groups belong to steps here, so Load gives them to the caller. The optimizers of the job
// only: what a trainer's own has, OptimStateOf says.
//
// FLATTENED has one step for a unit: where trainable parameters of a unit have been updated
// unequally often it is refused; the other types keep each one's (docs/adr/0023).
//
// The type is that of the root's units. Collective, between steps, as StateDicts; repeated where
// another rank's process dies. One thread; model and types outlive this.

class OptimStateDicts {
 public:
  OptimStateDicts(ShardedModel* model, const StateDictTypes* types)
      : model_(model), types_(types) {}

  // Without param groups where rank0_only leaves this rank nothing.
  // Errors: InvalidArgument     as StateDictTypes::Get; LOCAL of a unit that shards nothing
  //         FailedPrecondition  as StateDicts::Get; FLATTENED of unequal steps, both named
  //         others              ReadMoments
  absl::StatusOr<OptimStateDict> Get();

  // FLATTENED, of FULL or SHARDED as the type is. Changes nothing. `from_rank0`: of FULL, rank 0's
  // dictionary is everybody's. `strict` is ignored: a key that is not a parameter is an error.
  // Errors: as Load; FailedPrecondition  unequal steps within a unit, named
  absl::StatusOr<OptimStateDict> ToLoad(const OptimStateDict& dict,
                                        const LoadStateOptions& options = {});

  // On all ranks or on none; an error of one rank is every rank's. Returns the groups' numbers.
  // Errors: NotFound            a key that is not a parameter, named
  //         InvalidArgument     an entry of another shape or part, or an impossible step; another
  //                             number of param groups, or numbers that are out of range
  //         FailedPrecondition  a parameter's state has other moments than the optimizer, named;
  //                             CheckFormula's; the ranks' dictionaries differ; within RunStep
  //         Unknown             what libtorch says of a tensor that it cannot convert
  //         others              WriteOptimizerState's
  absl::StatusOr<std::vector<HyperParameters>> Load(const OptimStateDict& dict,
                                                    const LoadStateOptions& options = {});

  // What ids count: the job's param groups, one after the other, in the order of the model.
  std::vector<std::string> names() const;

 private:
  absl::Status CheckUse(const char* what, bool loads) const;
  absl::StatusOr<OptimStateDict> TryGet(const StateDictSettings& settings);

  ShardedModel* const model_;
  const StateDictTypes* const types_;
};

// --- Of a trainer's own optimizer on shards ---
//
// What a trainer's own optimizer on shards remembers, as a dictionary in memory, and back.
//
//   OptimStateDict dict = *GatherOptimState(sharded.get(), own.get());    whole, on every rank
//   ... another world or other units, a new ShardOptimizer ...
//   SetShardOptimState(dict, sharded.get(), own.get());
//
// libtorch's Adam, AdamW and SGD, whose one or more groups have the tensors of shards(). As
// OptimStateDict of FULL type: keyed by name, and other than the job's own optimizer's in nothing.
// last_step is not set: steps are the job's, and continue as they were. Collective, between steps;
// repeated where another rank's process dies. Memory: the whole dictionary.

// Errors: as OptimStateOf, of any rank; FailedPrecondition  within a step, or the ranks'
//         optimizers have state of different parameters
absl::StatusOr<OptimStateDict> GatherOptimState(ShardedModel* model, ShardOptimizer* own);

// Each rank takes its own part of the same dictionary. On all ranks or on none, and one rank's
// error is every rank's. Errors: as SetOptimState, of any rank; FailedPrecondition  within a step
absl::Status SetShardOptimState(const OptimStateDict& dict, ShardedModel* model,
                                ShardOptimizer* own);

}  // namespace tessera

#endif  // TESSERA_TORCH_OPTIM_STATE_DICTS_H_
