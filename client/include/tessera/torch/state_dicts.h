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
#ifndef TESSERA_TORCH_STATE_DICTS_H_
#define TESSERA_TORCH_STATE_DICTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/state_dict.h"

namespace tessera {

struct StateSite;

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
