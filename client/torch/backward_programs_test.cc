// Random models and random ways to run backward through them train as the plain module does:
// results that are views and change in place, frozen and unused parameters, units that are used
// twice, nested, checkpointed or left by a member, backwards that repeat, nest, throw, or are gone
// through again for gradients of gradients.
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "tessera/torch/activations.h"

namespace tessera {
namespace {

constexpr int64_t kWidth = 6;
constexpr int kSteps = 3;

enum Kind { kPlain, kView, kFrozen, kHalfFrozen, kTwice, kNested, kForce, kAside, kUnused, kKinds };
enum Program { kOnce, kRetained, kSplit, kPenalty, kThrows, kPrograms };

torch::nn::Linear NewLinear(torch::nn::Module* module, const std::string& name) {
  return module->register_module(name, torch::nn::Linear(kWidth, kWidth));
}

struct PartImpl : torch::nn::Module {
  explicit PartImpl(int kind_of_part)
      : kind(kind_of_part), linear(NewLinear(this, "linear")), other(NewLinear(this, "other")) {
    if (kind == kFrozen) {
      for (torch::Tensor& parameter : parameters()) parameter.requires_grad_(false);
    }
    if (kind == kHalfFrozen) linear->weight.requires_grad_(false);
    if (kind == kNested)
      inner = register_module("inner", std::make_shared<Sharded<PartImpl>>(kView));
  }

  torch::Tensor forward(torch::Tensor x) {
    switch (kind) {
      case kView:
        return linear->forward(torch::gelu(other->forward(x))).view({-1, kWidth / 2, 2});
      case kTwice:
        return other->forward(linear->forward(torch::tanh(linear->forward(x))));
      case kNested:
        return other->forward(torch::tanh(linear->forward(inner->forward(x).flatten(1))));
      case kForce: {
        const torch::Tensor energy = torch::tanh(linear->forward(x)).sum();
        return other->forward(x - torch::autograd::grad({energy}, {x}, {}, true, true)[0]);
      }
      case kAside:
        aside = linear->forward(x).square().mean();
        return other->forward(x);
      case kUnused:
        return linear->forward(x);
      default:
        return other->forward(torch::gelu(linear->forward(x)));
    }
  }

  const int kind;
  torch::nn::Linear linear, other;
  std::shared_ptr<Sharded<PartImpl>> inner;
  torch::Tensor aside;
};
using Part = Sharded<PartImpl>;

struct StackImpl : torch::nn::Module {
  explicit StackImpl(uint32_t seed) : in(NewLinear(this, "in")) {
    std::mt19937 random(seed);
    for (int i = 0; i < 5; ++i) {
      parts.push_back(register_module(absl::StrCat("part", i),
                                      std::make_shared<Part>(static_cast<int>(random() % kKinds))));
      order.push_back(i);
      // What a segment computes without a graph first has no gradient to take, nor to leave aside.
      const int kind = parts[i]->kind;
      is_checkpointed.push_back(random() % 4 == 0 && kind != kAside && kind != kForce);
    }
    order.push_back(static_cast<int>(random() % 5));  // One is used again.
    program = static_cast<int>(random() % kPrograms);
    // Second derivatives of a segment that is computed again there are none.
    if (program == kPenalty) is_checkpointed.assign(5, false);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = in->forward(x);
    aside = torch::zeros({});
    for (const int i : order) {
      torch::Tensor y = is_checkpointed[i] ? Checkpoint(parts[i], x) : parts[i]->forward(x);
      if (!is_checkpointed[i]) y.masked_fill_(torch::abs(y) > 0.8, 0.25);
      x = y.flatten(1);
      if (parts[i]->aside.defined()) aside = aside + parts[i]->aside;
    }
    return x;
  }

  torch::nn::Linear in;
  std::vector<std::shared_ptr<Part>> parts;
  std::vector<int> order;
  std::vector<bool> is_checkpointed;
  int program = kOnce;
  torch::Tensor aside;
};
using Stack = Sharded<StackImpl>;

class TestError : public std::runtime_error {
 public:
  TestError() : std::runtime_error("of the test") {}
};

// One step's forwards and backwards.
void RunProgram(Stack& stack, int64_t step) {
  const torch::Tensor x =
      torch::sin(torch::arange(3 * kWidth).view({3, kWidth}) * (step + 1.5)).requires_grad_();
  const torch::Tensor y = stack.forward(x);
  switch (stack.program) {
    case kRetained:
      y.square().mean().backward({}, /*retain_graph=*/true);
      (y.mean() + stack.aside).backward();
      return;
    case kSplit:
      stack.aside.requires_grad() ? stack.aside.backward({}, /*retain_graph=*/true) : void();
      y.select(1, 0).sum().backward({}, /*retain_graph=*/true);
      y.select(1, 1).square().sum().backward();
      return;
    case kPenalty: {
      const torch::Tensor gradient = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
      (y.square().mean() + gradient.square().sum() + stack.aside).backward();
      return;
    }
    case kThrows: {
      // At its end, when all parameters have their gradients.
      const torch::Tensor z = x * 1.0;
      const torch::Tensor thrown = stack.forward(z);
      z.register_hook([](const torch::Tensor&) { throw TestError(); });
      EXPECT_ANY_THROW(thrown.mean().backward());
      y.square().mean().backward();
      return;
    }
    default:
      (y.square().mean() + stack.aside).backward();
  }
}

class BackwardProgramsTest : public TorchCluster {
 protected:
  std::shared_ptr<Stack> MakeStack(uint32_t seed) {
    torch::set_num_threads(1);
    absl::MutexLock lock(&seed_mu_);
    torch::manual_seed(seed);
    return std::make_shared<Stack>(seed);
  }
  std::map<std::string, torch::Tensor> PlainRun(uint32_t seed) {
    const std::shared_ptr<Stack> stack = MakeStack(seed);
    torch::optim::SGD optimizer(stack->parameters(), /*lr=*/0.05);
    for (int64_t step = 1; step <= kSteps; ++step) {
      RunProgram(*stack, step);
      optimizer.step();
      for (torch::Tensor& parameter : stack->parameters()) parameter.mutable_grad().reset();
    }
    return CopyOf(*stack);
  }
  void ExpectTrainsAsPlain(uint32_t seed, int world_size, Strategy strategy, int gradient_slots) {
    const std::map<std::string, torch::Tensor> expected = PlainRun(seed);
    ForEachRank(world_size, [&](int rank) {
      const std::shared_ptr<Stack> stack = MakeStack(seed);
      SessionOptions options = OptionsFor(rank, world_size);
      options.job_id = absl::StrCat("seed-", seed, "-", world_size);
      options.config.groups[0].learning_rate = 0.05;
      options.config.strategy = strategy;
      options.config.gradient_slots = gradient_slots;
      auto model = ShardedModel::Attach(stack, options);
      ASSERT_OK(model);
      for (int64_t step = 1; step <= kSteps; ++step) {
        ASSERT_OK((*model)->RunStep([&] {
          RunProgram(*stack, step);
          return (*model)->Step();
        }));
      }
      SummonOptions read_only;
      read_only.writeback = false;
      ASSERT_OK((*model)->SummonFullParams(read_only, [&] {
        for (const auto& item : stack->named_parameters()) {
          EXPECT_TRUE(torch::allclose(item.value(), expected.at(item.key()), 1e-5, 1e-6))
              << item.key() << ": " << item.value() << " != " << expected.at(item.key());
        }
        return absl::OkStatus();
      }));
    });
  }
};

TEST_F(BackwardProgramsTest, TrainAsThePlainModule) {
  for (uint32_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    const Strategy strategy = seed % 4 == 0 ? Strategy::kShardGradOp : Strategy::kFullShard;
    const int world_size = 1 + seed % 2, gradient_slots = seed % 3 == 0 ? 1 : 2;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", world_size, " ranks, ", Name(strategy)));
    ASSERT_NO_FATAL_FAILURE(SetUp());  // Jobs keep their devices.
    ExpectTrainsAsPlain(seed, world_size, strategy, gradient_slots);
  }
}

}  // namespace
}  // namespace tessera
