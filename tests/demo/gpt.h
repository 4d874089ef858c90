// A byte-level GPT whose blocks are units; the root holds the embedding, tied to the output layer.
#ifndef TESSERA_TESTS_DEMO_GPT_H_
#define TESSERA_TESTS_DEMO_GPT_H_

#include <torch/nn/modules/normalization.h>

#include <memory>
#include <vector>

#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"

namespace tessera::demo {

struct GptConfig {
  int64_t vocabulary = 256;
  int64_t width = 256;
  int64_t heads = 4;
  int64_t blocks = 4;
  int64_t context = 64;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptConfig& config);
  torch::Tensor forward(torch::Tensor x);  // [batch, context, width] -> the same

  int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, projection, up, down;
};

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptConfig& config);
  torch::Tensor forward(torch::Tensor tokens);  // [batch, context] int64 -> logits [.., vocabulary]

  torch::Tensor embedding, position;
  std::vector<std::shared_ptr<Sharded<BlockImpl>>> blocks;
  torch::nn::LayerNorm norm;
};

using Gpt = Sharded<GptImpl>;

// The same values for the same seed.
std::shared_ptr<Gpt> MakeGpt(const GptConfig& config, uint64_t seed);

// Mean cross-entropy of predicting each next byte; `windows` is [batch, context + 1].
torch::Tensor NextByteLoss(Gpt& model, const torch::Tensor& windows);

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_GPT_H_
