// The models that the conformance tests train, each the equivalent of one that PyTorch's own suite
// uses. Every Sharded<> is a plain module until it is attached, so the reference is the same class.
// No dropout: ranks are threads here, and libtorch's generator is the process's.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_MODELS_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_MODELS_H_

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera::conformance {

using LinearUnit = Sharded<torch::nn::LinearImpl>;

// Every parameter gets values that depend on its place alone.
void FillParameters(torch::nn::Module& module);
// Of a batch: values in [-1, 1] by step and rank.
torch::Tensor Samples(int64_t step, int rank, std::vector<int64_t> shape);

// Linear 8-4; a unit of (a unit 4-16; 16-16); a unit 16-4; Linear 4-8. NestedUnits() chooses those
// units, ManyUnits() each linear layer too, but for those that would leave nothing to an outer one.
struct InnerImpl : torch::nn::Module {
  InnerImpl();
  torch::Tensor forward(torch::Tensor x);
  std::shared_ptr<LinearUnit> first, second;
};
struct NestedImpl : torch::nn::Module {
  explicit NestedImpl(bool non_uniform = false);  // Only the last two parameters are trainable.
  torch::Tensor forward(torch::Tensor x);
  std::shared_ptr<LinearUnit> in;
  std::shared_ptr<Sharded<InnerImpl>> inner;
  std::shared_ptr<LinearUnit> middle, out;
};
using Nested = Sharded<NestedImpl>;
WrapPolicy NestedUnits();
WrapPolicy ManyUnits();
torch::Tensor LossOf(Nested& model, int64_t step, int rank);

// Two encoder and two decoder blocks of attention, vocabulary 23, width 16; the output's weight is
// the embedding's; a floating-point buffer and one of int64, which counts calls.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool decoder);
  torch::Tensor forward(torch::Tensor x, torch::Tensor memory);
  torch::nn::MultiheadAttention self{nullptr}, cross{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
struct TransformerImpl : torch::nn::Module {
  TransformerImpl();
  torch::Tensor forward(torch::Tensor source, torch::Tensor target);
  std::shared_ptr<torch::nn::EmbeddingImpl> embedding;
  std::vector<std::shared_ptr<Sharded<BlockImpl>>> blocks;  // Encoders, then decoders.
  torch::Tensor output_weight, output_bias;
  torch::Tensor vocab_bias, calls;
};
using Transformer = Sharded<TransformerImpl>;
torch::Tensor LossOf(Transformer& model, int64_t step, int rank);

// Two linear layers of dim and 4 * dim; a chain of them, each a unit.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t dim);
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Linear in{nullptr}, out{nullptr};
};
struct MlpStackImpl : torch::nn::Module {
  explicit MlpStackImpl(int64_t dim, int count = 3);
  torch::Tensor forward(torch::Tensor x);
  const int64_t dim;
  bool checkpoints = false;  // Each unit is a segment that is computed again in backward.
  std::vector<std::shared_ptr<Sharded<MlpImpl>>> mlps;
  torch::nn::Linear head{nullptr};  // The root's own.
};
using MlpStack = Sharded<MlpStackImpl>;
torch::Tensor LossOf(MlpStack& model, int64_t step, int rank);

// A linear layer for all, an expert for each rank alone (its parameters are to be ignored), and a
// linear layer for all.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl();
  torch::Tensor forward(torch::Tensor x);
  std::shared_ptr<LinearUnit> shared;
  torch::nn::Linear expert{nullptr}, head{nullptr};
};
using Experts = Sharded<ExpertsImpl>;
torch::Tensor LossOf(Experts& model, int64_t step, int rank);

}  // namespace tessera::conformance

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_MODELS_H_
