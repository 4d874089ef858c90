#include "tests/conformance/fsdp/models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "absl/strings/str_cat.h"
#include "tessera/torch/activations.h"

namespace tessera::conformance {

void FillParameters(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  double k = 0;
  for (torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor i = torch::arange(parameter.numel(), torch::kFloat32);
    parameter.copy_((torch::sin(i * 0.7 + k) * 0.4).view(parameter.sizes()));
    k += 3;
  }
}

torch::Tensor Samples(int64_t step, int rank, std::vector<int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return torch::sin(torch::arange(numel, torch::kFloat32) * 0.9 + (13.0 * step + 5.0 * rank))
      .view(shape);
}

InnerImpl::InnerImpl()
    : first(register_module("0", std::make_shared<LinearUnit>(4, 16))),
      second(register_module("1", std::make_shared<LinearUnit>(16, 16))) {}

torch::Tensor InnerImpl::forward(torch::Tensor x) {
  return torch::tanh(second->forward(torch::tanh(first->forward(x))));
}

NestedImpl::NestedImpl(bool non_uniform)
    : in(register_module("0", std::make_shared<LinearUnit>(8, 4))),
      inner(register_module("1", std::make_shared<Sharded<InnerImpl>>())),
      middle(register_module("2", std::make_shared<LinearUnit>(16, 4))),
      out(register_module("3", std::make_shared<LinearUnit>(4, 8))) {
  FillParameters(*this);
  std::vector<torch::Tensor> all = parameters();
  for (size_t i = 0; non_uniform && i + 2 < all.size(); ++i) all[i].requires_grad_(false);
}

torch::Tensor NestedImpl::forward(torch::Tensor x) {
  return out->forward(middle->forward(inner->forward(torch::tanh(in->forward(x)))));
}

WrapPolicy NestedUnits() {
  return WrapIf([](const WrapCandidate& candidate) {
    return candidate.name == "1" || candidate.name == "1.0" || candidate.name == "2";
  });
}

WrapPolicy ManyUnits() {
  return WrapIf([](const WrapCandidate& candidate) {
    return candidate.name != "1.1" && candidate.name != "3";
  });
}

torch::Tensor LossOf(Nested& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {4, 8})).square().mean();
}

BlockImpl::BlockImpl(bool decoder)
    : self(register_module("self", torch::nn::MultiheadAttention(16, 2))),
      norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{16}))),
      up(register_module("up", torch::nn::Linear(16, 8))),
      down(register_module("down", torch::nn::Linear(8, 16))) {
  if (decoder) cross = register_module("cross", torch::nn::MultiheadAttention(16, 2));
}

torch::Tensor BlockImpl::forward(torch::Tensor x, torch::Tensor memory) {
  x = x + std::get<0>(self->forward(x, x, x));
  if (!cross.is_empty()) x = x + std::get<0>(cross->forward(x, memory, memory));
  return norm->forward(x + down->forward(torch::gelu(up->forward(x))));
}

TransformerImpl::TransformerImpl()
    : embedding(register_module("embedding", std::make_shared<torch::nn::EmbeddingImpl>(23, 16))) {
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(register_module(absl::StrCat(i < 2 ? "encoder" : "decoder", i % 2),
                                     std::make_shared<Sharded<BlockImpl>>(i >= 2)));
  }
  output_weight = register_parameter("output_weight", embedding->weight);
  output_bias = register_parameter("output_bias", torch::zeros({23}));
  FillParameters(*this);
  vocab_bias = register_buffer("vocab_bias", torch::linspace(-0.1, 0.1, 23));
  calls = register_buffer("calls", torch::zeros({1}, torch::kInt64));
}

torch::Tensor TransformerImpl::forward(torch::Tensor source, torch::Tensor target) {
  calls += 1;
  torch::Tensor memory = embedding->forward(source), x = embedding->forward(target);
  for (int i = 0; i < 2; ++i) memory = blocks[i]->forward(memory, memory);
  for (int i = 2; i < 4; ++i) x = blocks[i]->forward(x, memory);
  return torch::matmul(x, output_weight.t()) + output_bias + vocab_bias;
}

torch::Tensor LossOf(Transformer& model, int64_t step, int rank) {
  const torch::Tensor i = torch::arange(12, torch::kInt64).view({4, 3});
  const torch::Tensor source = (i * (step + 2) + 5 * rank) % 23,
                      target = (i * 7 + step + rank) % 23;
  const torch::Tensor logits = model.forward(source, target);
  return torch::nn::functional::cross_entropy(
      logits.view({-1, 23}), target.view({-1}),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

MlpImpl::MlpImpl(int64_t dim)
    : in(register_module("in", torch::nn::Linear(dim, 4 * dim))),
      out(register_module("out", torch::nn::Linear(4 * dim, dim))) {}

torch::Tensor MlpImpl::forward(torch::Tensor x) {
  return torch::tanh(out->forward(torch::relu(in->forward(x))));
}

MlpStackImpl::MlpStackImpl(int64_t dim, int count) : dim(dim) {
  for (int i = 0; i < count; ++i)
    mlps.push_back(
        register_module(absl::StrCat("mlp", i), std::make_shared<Sharded<MlpImpl>>(dim)));
  head = register_module("head", torch::nn::Linear(dim, dim));
  FillParameters(*this);
}

torch::Tensor MlpStackImpl::forward(torch::Tensor x) {
  for (auto& mlp : mlps) x = checkpoints ? Checkpoint(mlp, x) : mlp->forward(x);
  return head->forward(x);
}

torch::Tensor LossOf(MlpStack& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {4, model.dim})).square().mean();
}

ExpertsImpl::ExpertsImpl()
    : shared(register_module("shared", std::make_shared<LinearUnit>(8, 8))),
      expert(register_module("expert", torch::nn::Linear(8, 8))),
      head(register_module("head", torch::nn::Linear(8, 4))) {
  FillParameters(*this);
}

torch::Tensor ExpertsImpl::forward(torch::Tensor x) {
  return head->forward(torch::tanh(expert->forward(torch::tanh(shared->forward(x)))));
}

torch::Tensor LossOf(Experts& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {4, 8})).square().mean();
}

}  // namespace tessera::conformance
