#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <mutex>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tessera/torch/activations.h"

namespace tessera {
namespace {

using checkpoint_internal::Segment;
using checkpoint_internal::Tensors;
using torch::autograd::AutogradContext;
using torch::autograd::Node;

// Of the CPU. From libtorch 2.4 on, autocast is asked by device.
struct Autocast {
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;

  static Autocast Now() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    return {at::autocast::is_autocast_enabled(at::kCPU),
            at::autocast::get_autocast_dtype(at::kCPU)};
#else
    return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
#endif
  }
  void Restore() const {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
#else
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(dtype);
#endif
  }
};

// What a forward depends on in addition to its inputs.
class Surroundings {
 public:
  static Surroundings Now() {
    Surroundings now;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    // The generator's own lock: other threads may draw from it.
    const std::lock_guard<std::mutex> lock(generator.mutex());
    now.random_ = generator.get_state();
    now.autocast_ = Autocast::Now();
    return now;
  }
  void Restore() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(random_);
    autocast_.Restore();
  }

 private:
  torch::Tensor random_;
  Autocast autocast_;
};

// While one lives, this thread is where it was in forward.
class Recomputation {
 public:
  explicit Recomputation(const Surroundings& then) : now_(Surroundings::Now()) { then.Restore(); }
  ~Recomputation() { now_.Restore(); }
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;

 private:
  const Surroundings now_;
  // The engine runs the nodes of a plain backward without it.
  const torch::AutoGradMode grad_mode_{true};
};

bool Differentiable(const torch::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

Tensors TrainedParameters(const CheckpointModules& modules) {
  Tensors parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& module : modules) {
    for (const torch::Tensor& parameter : module->parameters()) {
      if (parameter.defined() && parameter.requires_grad() &&
          seen.insert(parameter.unsafeGetTensorImpl()).second) {
        // Tied parameters once: each argument gets one gradient.
        parameters.push_back(parameter);
      }
    }
  }
  return parameters;
}

[[noreturn]] void ThrowForeign(const std::string& what) {
  throw StatusException(absl::InvalidArgumentError(absl::StrCat(
      "checkpoint: the segment uses ", what,
      ", which needs a gradient and is neither an input nor a parameter of its modules")));
}

// Throws where gradients would leave the segment by another way than `sources`. Nodes numbered
// below `first_node` were there before it was computed again.
void CheckClosed(const Tensors& outputs, const Tensors& sources, uint64_t first_node) {
  // By what takes their gradients, as a source need not be the tensor that the segment uses: one
  // that autograd kept elsewhere comes back as another (activations.h).
  std::vector<std::shared_ptr<Node>> alive;
  std::unordered_set<const Node*> known;
  for (const torch::Tensor& source : sources) {
    if (!source.defined() || !source.requires_grad() || !source.is_leaf()) continue;
    // Held, since a tensor has only a weak reference to its accumulator.
    alive.push_back(torch::autograd::impl::grad_accumulator(source));
    known.insert(alive.back().get());
  }
  std::unordered_set<const Node*> seen;
  std::vector<Node*> stack;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) stack.push_back(node);
  };
  for (const torch::Tensor& output : outputs) visit(output.grad_fn().get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (known.count(node) == 0) {
        ThrowForeign(
            absl::StrCat("a tensor of shape [", absl::StrJoin(leaf->variable.sizes(), ", "), "]"));
      }
    } else if (node->sequence_nr() < first_node) {
      ThrowForeign(absl::StrCat("a tensor that ", node->name(), " made outside of it"));
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

// A segment and what it returned, as one node of the graph. Its arguments are the differentiable
// inputs, then the parameters.
struct State : torch::CustomClassHolder {
  Segment first, again;
  Tensors inputs;               // In the order of the call; undefined where autograd has it.
  std::vector<size_t> saved;    // Indices of the inputs that autograd has.
  Tensors outputs;              // Of the first run.
  std::vector<size_t> visible;  // Indices of the outputs that autograd sees.
  Surroundings surroundings;

  Tensors Visible(const Tensors& all) const {
    Tensors result;
    for (size_t i : visible) result.push_back(all[i]);
    return result;
  }
};

class CheckpointFunction : public torch::autograd::Function<CheckpointFunction> {
 public:
  static Tensors forward(AutogradContext* ctx, const c10::intrusive_ptr<State>& state,
                         at::TensorList arguments);
  static Tensors backward(AutogradContext* ctx, Tensors gradients);
};

Tensors CheckpointFunction::forward(AutogradContext* ctx, const c10::intrusive_ptr<State>& state,
                                    at::TensorList arguments) {
  Tensors inputs = state->inputs;
  for (size_t i = 0; i < state->saved.size(); ++i) inputs[state->saved[i]] = arguments[i];
  // A change in place would make the recomputation start from other values.
  std::vector<uint32_t> versions;
  for (const torch::Tensor& input : inputs) {
    versions.push_back(input.defined() ? input._version() : 0);
  }
  state->surroundings = Surroundings::Now();
  state->outputs = state->first(inputs);
  // It may hold modules and tensors, which need not stay until backward.
  state->first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i]._version() != versions[i]) {
      throw StatusException(absl::InvalidArgumentError(
          absl::StrCat("checkpoint: the segment changed its tensor input ", i, " in place")));
    }
  }
  for (size_t i = 0; i < state->outputs.size(); ++i) {
    if (Differentiable(state->outputs[i])) state->visible.push_back(i);
  }
  // Undefined gradients stay undefined: zeroes would cost a whole backward for nothing.
  ctx->set_materialize_grads(false);
  ctx->save_for_backward(arguments.vec());
  ctx->saved_data["state"] = c10::IValue::make_capsule(state);
  return state->Visible(state->outputs);
}

Tensors CheckpointFunction::backward(AutogradContext* ctx, Tensors gradients) {
  const auto capsule = ctx->saved_data["state"].toCapsule();
  const auto* state = static_cast<const State*>(capsule.get());
  Tensors sources = ctx->get_saved_variables();  // Refuses what was changed since.
  Tensors inputs = state->inputs;
  for (size_t i = 0; i < state->saved.size(); ++i) {
    // Detached: the inner backward ends at the sources, and the outer one goes on from there.
    sources[i] = sources[i].detach().requires_grad_(sources[i].requires_grad());
    inputs[state->saved[i]] = sources[i];
  }
  // Whatever is numbered from here on was made by the recomputation.
  const uint64_t first_node = at::sequence_number::peek();
  Tensors all;
  {
    const Recomputation recomputation(state->surroundings);
    all = state->again(inputs);
  }
  if (all.size() != state->outputs.size()) {
    throw StatusException(absl::FailedPreconditionError(
        absl::StrCat("checkpoint: the segment returned ", state->outputs.size(),
                     " tensors, and in its recomputation ", all.size())));
  }
  Tensors outputs, output_gradients;
  const Tensors visible = state->Visible(all);
  for (size_t i = 0; i < visible.size(); ++i) {
    // An output that was not used, or needs no gradient, has none.
    if (!gradients[i].defined() || !visible[i].requires_grad()) continue;
    outputs.push_back(visible[i]);
    output_gradients.push_back(gradients[i]);
  }
  CheckClosed(outputs, sources, first_node);
  Tensors wanted;
  for (const torch::Tensor& source : sources) {
    if (source.requires_grad()) wanted.push_back(source);
  }
  Tensors found(wanted.size());
  if (!outputs.empty()) {
    found = torch::autograd::grad(outputs, wanted, output_gradients, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  }
  Tensors result(1);  // Of the state.
  auto next = found.begin();
  for (const torch::Tensor& source : sources) {
    result.push_back(source.requires_grad() ? *next++ : torch::Tensor());
  }
  return result;
}

}  // namespace

namespace checkpoint_internal {

bool NeedsGradient(const Tensors& inputs, const CheckpointModules& modules) {
  if (!torch::GradMode::is_enabled()) return false;
  for (const torch::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return !TrainedParameters(modules).empty();
}

Tensors Run(Segment first, Segment again, Tensors inputs, const CheckpointModules& modules) {
  auto state = c10::make_intrusive<State>();
  state->first = std::move(first);
  state->again = std::move(again);
  Tensors arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    // Autograd saves differentiable inputs by itself, and checks that they are not changed.
    if (!Differentiable(inputs[i])) continue;
    state->saved.push_back(i);
    arguments.push_back(std::exchange(inputs[i], torch::Tensor()));
  }
  state->inputs = std::move(inputs);
  const Tensors parameters = TrainedParameters(modules);
  arguments.insert(arguments.end(), parameters.begin(), parameters.end());
  const Tensors visible = CheckpointFunction::apply(state, at::TensorList(arguments));
  Tensors outputs = std::move(state->outputs);
  state->outputs.assign(outputs.size(), torch::Tensor());  // Only their number is needed again.
  // The others passed through, and have no gradient.
  for (size_t i = 0; i < visible.size(); ++i) outputs[state->visible[i]] = visible[i];
  return outputs;
}

}  // namespace checkpoint_internal
}  // namespace tessera
