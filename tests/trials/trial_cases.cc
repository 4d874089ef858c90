#include "tests/trials/trial_cases.h"

#include <stdexcept>
#include <thread>
#include <utility>

namespace tessera::trials {
namespace {

torch::Tensor LossOf(const torch::Tensor& y) { return y.square().mean(); }

void Backward(Net& net, const torch::Tensor& x) { LossOf(net.forward(x)).backward(); }

using Body = std::function<void(Net& net, const torch::Tensor& x)>;

TrialCase Trains(std::string name, std::string what, Body body) {
  TrialCase made;
  made.name = std::move(name);
  made.what = std::move(what);
  made.body = [body = std::move(body)](Net& net, const torch::Tensor& x, int64_t) {
    body(net, x);
    return true;
  };
  return made;
}

TrialCase Refused(std::string name, std::string what, std::string refusal, Body behind_backward) {
  TrialCase made = Trains(std::move(name), std::move(what),
                          [use = std::move(behind_backward)](Net& net, const torch::Tensor& x) {
                            Backward(net, x);
                            use(net, x);
                          });
  made.refusal = std::move(refusal);
  return made;
}

std::vector<TrialCase> Backwards() {
  return {
      Trains("plain", "forward, backward, step", Backward),
      Trains("view-in-place", "a unit's result is viewed and changed in place",
             [](Net& net, const torch::Tensor& x) {
               torch::Tensor y = net.blocks[0]->forward(x).view({-1, kWidth});
               y.masked_fill_(y > 0.5, 0.25);
               LossOf(net.forward(y)).backward();
             }),
      Trains("gradient-penalty", "a loss of the gradient with respect to the input, create_graph",
             [](Net& net, const torch::Tensor& x) {
               const torch::Tensor in = x.detach().requires_grad_();
               const torch::Tensor y = net.forward(in);
               const torch::Tensor gradient =
                   torch::autograd::grad({y.sum()}, {in}, {}, true, true)[0];
               (LossOf(y) + gradient.square().mean()).backward();
             }),
      Trains("retained-graph", "two backwards through one forward",
             [](Net& net, const torch::Tensor& x) {
               const torch::Tensor y = net.forward(x);
               LossOf(y.select(1, 0)).backward({}, /*retain_graph=*/true);
               LossOf(y.select(1, 1)).backward();
             }),
      Trains("used-twice", "a unit that runs twice in a forward",
             [](Net& net, const torch::Tensor& x) {
               LossOf(net.forward(net.blocks[0]->forward(x))).backward();
             }),
      Trains("accumulation", "three backwards before a step",
             [](Net& net, const torch::Tensor& x) {
               for (const double scale : {0.5, 1.0, 1.5}) Backward(net, x * scale);
             }),
      Trains("caught-exception", "a hook throws in backward, the body catches it and goes on",
             [](Net& net, const torch::Tensor& x) {
               const torch::Tensor in = x.detach().requires_grad_();
               const torch::Tensor middle = net.blocks[0]->forward(in);
               if (middle.requires_grad()) {
                 middle.register_hook([](const torch::Tensor&) -> torch::Tensor {
                   throw std::runtime_error("of the trial");
                 });
               }
               try {
                 LossOf(net.forward(middle)).backward();
               } catch (const std::runtime_error&) {
               }
               net.zero_grad();
               Backward(net, x);
             }),
  };
}

// What autograd lets people do besides Tensor::backward().
std::vector<TrialCase> UsesOfAutograd() {
  TrialCase parameter_hook = Trains("parameter-hook", "a hook of a parameter", Backward);
  parameter_hook.prepare = [](Net& net) {
    net.blocks[0]->linear->weight.register_hook([](const torch::Tensor& g) { return g * 2; });
  };
  return {
      parameter_hook,
      Trains("output-hook", "a hook of a unit's result changes the gradient",
             [](Net& net, const torch::Tensor& x) {
               torch::Tensor middle = net.blocks[0]->forward(x);
               if (middle.requires_grad())
                 middle.register_hook([](const torch::Tensor& g) { return g * 0.5; });
               LossOf(net.forward(middle)).backward();
             }),
      Trains("no-grad-part", "a part of forward under NoGradGuard, by the same units",
             [](Net& net, const torch::Tensor& x) {
               torch::Tensor target;
               {
                 const torch::NoGradGuard no_grad;
                 target = net.forward(x * 0.5);
               }
               LossOf(net.forward(x) - target).backward();
             }),
      Trains("other-thread", "backward on a thread of its own",
             [](Net& net, const torch::Tensor& x) {
               const torch::Tensor loss = LossOf(net.forward(x));
               std::thread([&] { loss.backward(); }).join();
             }),
  };
}

TrialCase FrozenForAStep() {
  TrialCase made;
  made.name = "frozen-later";
  made.what = "a parameter that needs no gradient in every other step";
  made.body = [](Net& net, const torch::Tensor& x, int64_t step) {
    net.blocks[0]->linear->weight.requires_grad_(step % 2 == 1);
    Backward(net, x);
    return true;
  };
  return made;
}

TrialCase BranchNotTaken() {
  TrialCase made;
  made.name = "branch-not-taken";
  made.what = "a unit that every other step leaves out";
  made.body = [](Net& net, const torch::Tensor& x, int64_t step) {
    Backward(net, step % 2 == 0 ? net.spare->forward(x) : x);
    return true;
  };
  return made;
}

TrialCase Frozen() {
  TrialCase made = Trains("frozen", "some parameters need no gradient", Backward);
  made.prepare = [](Net& net) {
    net.blocks[0]->linear->weight.requires_grad_(false);
    net.spare->linear->bias.requires_grad_(false);
  };
  return made;
}

TrialCase SkippedStep() {
  TrialCase made;
  made.name = "skipped-step";
  made.what = "the body leaves without a step, as where the loss is not a number";
  made.body = [](Net& net, const torch::Tensor& x, int64_t step) {
    Backward(net, x);
    return step != 2;
  };
  return made;
}

TrialCase ClippedByAnotherNormEachStep() {
  TrialCase made = Trains("clip-each-step", "ClipGradNorm by another norm each step", Backward);
  made.clip = [](int64_t step) { return Clip{0.05 * step, step % 2 == 0 ? 1.0 : 2.0}; };
  return made;
}

std::vector<TrialCase> CallsOfTorch() {
  return {
      Trains("zero-grad", "a first loss's gradients are dropped by zero_grad()",
             [](Net& net, const torch::Tensor& x) {
               Backward(net, x * 3);
               net.zero_grad();
               Backward(net, x);
             }),
      Refused("torch-clip", "torch::nn::utils::clip_grad_norm_", "ClipGradNorm",
              [](Net& net, const torch::Tensor&) {
                torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
              }),
      Refused(
          "torch-optimizer", "a step of torch::optim::SGD", "ShardOptimizer",
          [](Net& net, const torch::Tensor&) { torch::optim::SGD(net.parameters(), 0.1).step(); }),
      Refused("grad-is-read", "grad() of a parameter", "grad()",
              [](Net& net, const torch::Tensor&) {
                (void)net.head->weight.grad().norm().item<double>();
              }),
      Refused("grad-is-reset", "grad() is reset by hand", "zero_grad()",
              [](Net& net, const torch::Tensor&) { net.head->weight.mutable_grad().reset(); }),
      Refused("create-graph", "gradients of parameters that need one themselves",
              "torch::autograd::grad",
              [](Net& net, const torch::Tensor& x) {
                LossOf(net.forward(x)).backward({}, true, /*create_graph=*/true);
              }),
      Refused("late-parameter", "a parameter registered after attaching", "registered after",
              [](Net& net, const torch::Tensor&) {
                net.blocks[0]->register_parameter("late", torch::ones({2}));
              }),
      Refused("replaced-module", "a module replaced after attaching", "registered after",
              [](Net& net, const torch::Tensor&) {
                net.head = net.replace_module("head", torch::nn::Linear(kWidth, 2));
              }),
  };
}

TrialCase RefusedAtAttach(std::string name, std::string what, std::string refusal,
                          std::function<void(Net& net)> prepare) {
  TrialCase made = Trains(std::move(name), std::move(what), Backward);
  made.prepare = std::move(prepare);
  made.refusal = std::move(refusal);
  return made;
}

std::vector<TrialCase> Modules() {
  return {
      RefusedAtAttach(
          "tie-by-set-data", "two parameters share memory", "share memory",
          [](Net& net) { net.spare->linear->weight.set_data(net.blocks[0]->linear->weight); }),
      RefusedAtAttach(
          "sparse-buffer", "a buffer that is not a dense tensor", "'block0.odd'",
          [](Net& net) { net.blocks[0]->register_buffer("odd", torch::eye(3).to_sparse()); }),
      RefusedAtAttach(
          "complex-parameter", "a parameter of a dtype that cannot be sharded", "'block0.odd'",
          [](Net& net) {
            net.blocks[0]->register_parameter("odd", torch::ones({2}, torch::kComplexFloat), false);
          }),
  };
}

std::vector<TrialCase> MissingRanks() {
  TrialCase leaves = Trains("rank-leaves", "one rank's program ends after two steps", Backward);
  leaves.last_rank = LastRank::kLeaves;
  TrialCase never = Trains("rank-never-comes", "one rank's program never starts", Backward);
  never.last_rank = LastRank::kNeverComes;
  return {leaves, never};
}

}  // namespace

std::vector<TrialCase> AllTrialCases() {
  std::vector<TrialCase> all = Backwards();
  all.push_back(BranchNotTaken());
  all.push_back(Frozen());
  all.push_back(FrozenForAStep());
  all.push_back(SkippedStep());
  all.push_back(ClippedByAnotherNormEachStep());
  for (auto& more : {UsesOfAutograd(), CallsOfTorch(), Modules(), MissingRanks()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace tessera::trials
