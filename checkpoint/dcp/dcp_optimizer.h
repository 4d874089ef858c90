// What a DCP folder says of an optimizer: the state dict that PyTorch's get_optimizer_state_dict
// makes, saved under a key of its own.
//
//   optim.state.block.0.weight.exp_avg     a tensor      PREFIXstate.PARAMETER.MOMENT
//   optim.state.block.0.weight.step        a tensor of one element, or a number
//   optim.param_groups.0.lr                a number      PREFIXparam_groups.GROUP.NUMBER
//   optim.param_groups.0.params            a list of parameters' names
//   optim.param_groups.block.0.weight.lr   or so, flattened: a number of one parameter
//
// Steps and numbers are read at once, moments on demand, through the folder's ModelSource.
// Plain values. Source: pytorch torch/distributed/checkpoint/state_dict.py.
#ifndef TESSERA_CHECKPOINT_DCP_DCP_OPTIMIZER_H_
#define TESSERA_CHECKPOINT_DCP_DCP_OPTIMIZER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/model_source.h"

namespace tessera::dcp {

struct OptimizerState {
  struct Parameter {
    std::optional<int64_t> step;                 // How often it was updated; SGD counts nothing.
    std::map<std::string, std::string> moments;  // "exp_avg" to the tensor's name in the folder.
  };
  // By PyTorch's name: "lr" to one, "betas" to two, a bool to 0 or 1. Other values are not there.
  using Numbers = std::map<std::string, std::vector<double>>;

  std::map<std::string, Parameter> parameters;
  // By parameter; those of its param group, which its members share. Not null.
  std::map<std::string, std::shared_ptr<const Numbers>> numbers;
};

// `tensors`: the folder's. Objects of other prefixes are not read.
// Errors: NotFound         nothing has the prefix, which is named
//         InvalidArgument  what DecodeContents and TorchObject::Read refuse; naming the item: a
//                          step that is not a count, a state that is not a tensor, an invalid group
//         others           as DcpModel::Open and ReadSlice.
absl::StatusOr<OptimizerState> ReadOptimizerState(const std::string& folder,
                                                  const ModelSource& tensors,
                                                  const std::string& prefix);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_DCP_OPTIMIZER_H_
