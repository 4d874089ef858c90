// An optimizer's state under the names of the parameters, in memory. Plain values.
//
//   FULL, SHARDED   state["1.weight"]       exp_avg, exp_avg_sq as the model's entries, and a step
//   FLATTENED       state["1._flat_param"]  this rank's elements of them; LOCAL of the model
//
// Adam's and AdamW's moments are called "exp_avg" and "exp_avg_sq", SGD's "momentum_buffer", as in
// PyTorch. `step` is how often the parameter was updated, so it says of each parameter what PyTorch
// says; one that never was has no entry.
// Source: optimizer state dicts of torch/distributed/fsdp.
#ifndef TESSERA_CLIENT_TORCH_OPTIM_STATE_DICT_H_
#define TESSERA_CLIENT_TORCH_OPTIM_STATE_DICT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/libtorch.h"
#include "client/torch/state_dict.h"
#include "job/job_config.h"

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

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_OPTIM_STATE_DICT_H_
