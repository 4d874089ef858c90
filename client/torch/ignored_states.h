// What stays out of sharding: plain tensors of the user's module, on every rank whole, which the
// user's own optimizer updates and the user reduces, if at all.
//
//   AttachOptions attach;
//   attach.ignored.modules = {model->experts};      the subtree, but units below it stay units
//   attach.ignored.parameters = {model->scale};     or single parameters; not both at once
//
// Ranks may ignore different things, as long as what is left is alike. What is named need not be in
// the tree. Source: ignored_modules and ignored_states of torch/distributed/fsdp.
#ifndef TESSERA_CLIENT_TORCH_IGNORED_STATES_H_
#define TESSERA_CLIENT_TORCH_IGNORED_STATES_H_

#include <memory>
#include <vector>

#include "client/torch/libtorch.h"

namespace tessera {

struct IgnoredStates {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<torch::Tensor> parameters;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_IGNORED_STATES_H_
