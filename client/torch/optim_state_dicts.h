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
#ifndef TESSERA_CLIENT_TORCH_OPTIM_STATE_DICTS_H_
#define TESSERA_CLIENT_TORCH_OPTIM_STATE_DICTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/optim_state_dict.h"
#include "client/torch/sharded_model.h"
#include "client/torch/state_dict_settings.h"
#include "client/torch/state_dicts.h"

namespace tessera {

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

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_OPTIM_STATE_DICTS_H_
