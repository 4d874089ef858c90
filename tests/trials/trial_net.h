// The model of the trials: a chain of units, one of them in a Sequential, with batch norm, a unit
// that only some steps use, and parameters of the root's own.
#ifndef TESSERA_TESTS_TRIALS_TRIAL_NET_H_
#define TESSERA_TESTS_TRIALS_TRIAL_NET_H_

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <vector>

#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"

namespace tessera::trials {

inline constexpr int64_t kWidth = 6;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) { return x + torch::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};
using Block = Sharded<BlockImpl>;
TORCH_MODULE_IMPL(HeldBlock, Block);

// libtorch's own norms cannot be derived from.
struct NormImpl : torch::nn::Module {
  NormImpl() : norm(register_module("norm", torch::nn::BatchNorm1d(kWidth))) {}
  torch::Tensor forward(torch::Tensor x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm;
};
using Norm = Sharded<NormImpl>;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int num_blocks) {
    for (int i = 0; i < num_blocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    spare = register_module("spare", std::make_shared<Block>());
    tail = register_module("tail", torch::nn::Sequential(HeldBlock(), torch::nn::Tanh()));
    norm = register_module("norm", std::make_shared<Norm>());
    head = register_module("head", torch::nn::Linear(kWidth, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : blocks) x = block->forward(x);
    return head->forward(norm->forward(tail->forward(x)));
  }

  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Block> spare;
  torch::nn::Sequential tail{nullptr};
  std::shared_ptr<Norm> norm;
  torch::nn::Linear head{nullptr};
};
using Net = Sharded<NetImpl>;

}  // namespace tessera::trials

#endif  // TESSERA_TESTS_TRIALS_TRIAL_NET_H_
