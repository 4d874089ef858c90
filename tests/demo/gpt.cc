#include "tests/demo/gpt.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <string>

namespace tessera::demo {

namespace F = torch::nn::functional;

BlockImpl::BlockImpl(const GptConfig& config)
    : heads(config.heads),
      norm1(register_module("norm1",
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
      norm2(register_module("norm2",
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
      qkv(register_module("qkv", torch::nn::Linear(config.width, 3 * config.width))),
      projection(register_module("projection", torch::nn::Linear(config.width, config.width))),
      up(register_module("up", torch::nn::Linear(config.width, 4 * config.width))),
      down(register_module("down", torch::nn::Linear(4 * config.width, config.width))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  const int64_t batch = x.size(0), context = x.size(1), width = x.size(2), head = width / heads;
  auto parts = qkv->forward(norm1->forward(x))
                   .view({batch, context, 3, heads, head})
                   .permute({2, 0, 3, 1, 4});
  const torch::Tensor q = parts[0], k = parts[1], v = parts[2];
  torch::Tensor scores =
      torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(head));
  const torch::Tensor future = torch::ones({context, context}, torch::kBool).triu(1);
  scores = scores.masked_fill(future, -1e9);
  const torch::Tensor mixed =
      torch::matmul(torch::softmax(scores, -1), v).transpose(1, 2).reshape({batch, context, width});
  x = x + projection->forward(mixed);
  return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
}

GptImpl::GptImpl(const GptConfig& config)
    : norm(register_module("norm",
                           torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))) {
  embedding =
      register_parameter("embedding", torch::randn({config.vocabulary, config.width}) * 0.02);
  register_parameter("output", embedding);  // Tied.
  position = register_parameter("position", torch::randn({config.context, config.width}) * 0.02);
  for (int64_t i = 0; i < config.blocks; ++i) {
    blocks.push_back(
        register_module("block" + std::to_string(i), std::make_shared<Sharded<BlockImpl>>(config)));
  }
}

torch::Tensor GptImpl::forward(torch::Tensor tokens) {
  torch::Tensor x = torch::embedding(embedding, tokens) + position.slice(0, 0, tokens.size(1));
  for (auto& block : blocks) x = block->forward(x);
  return torch::matmul(norm->forward(x), embedding.t());
}

std::shared_ptr<Gpt> MakeGpt(const GptConfig& config, uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<Gpt>(config);
}

torch::Tensor NextByteLoss(Gpt& model, const torch::Tensor& windows) {
  const int64_t context = windows.size(1) - 1;
  const torch::Tensor logits = model.forward(windows.slice(1, 0, context));
  const torch::Tensor targets = windows.slice(1, 1, context + 1);
  return F::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

}  // namespace tessera::demo
