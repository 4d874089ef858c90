// The memory of activations: a segment's are computed again in backward (Checkpoint), or those that
// autograd saves are kept in host memory (Offload).
//
// Activation checkpointing: keeps a segment's inputs only, and computes it again in backward.
//
//   x = Checkpoint(block, x, mask);                    a module, Sharded<> or not
//   x = CheckpointWith({first, second}, [=](torch::Tensor x) {
//     return second->forward(first->forward(x));
//   }, x);                                             a function, with the modules that it uses
//
// The result is that of the plain call, to the same bits, and so are the gradients wherever no
// tensor is used both inside and outside of a segment (sums are then associated differently). The
// CPU's random numbers and autocast are in the recomputation what they were. What else a segment
// changes, as a batch norm's running statistics, it changes twice. Units in a segment are unsharded
// for the recomputation and resharded when their gradients are reduced; segments nest.
//
// Where nothing that was given needs a gradient, this is the plain call. Every tensor of the result
// that is of floating point needs a gradient otherwise.
// Errors, thrown as StatusException, by backward if it does not say otherwise:
//   InvalidArgument     the segment uses a tensor that needs a gradient and is neither an input nor
//                       a parameter of its modules (naming its shape); by the call itself: it
//                       changed an input in place
//   FailedPrecondition  the recomputation gave another number of tensors
// What the segment throws is thrown. No second derivatives.
// Source: torch/utils/checkpoint.py, reentrant; but parameters are inputs, so that the gradient of
// each arrives once a backward.
#ifndef TESSERA_TORCH_ACTIVATIONS_H_
#define TESSERA_TORCH_ACTIVATIONS_H_

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"

namespace tessera {

using CheckpointModules = std::vector<std::shared_ptr<torch::nn::Module>>;

namespace checkpoint_internal {

using Tensors = std::vector<torch::Tensor>;
using Segment = std::function<Tensors(const Tensors& inputs)>;

template <typename T>
Tensors TensorsOf(T& value) {
  Tensors tensors;
  VisitTensors(value, [&](const torch::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

template <typename T>
void SetTensors(T& value, const Tensors& tensors) {
  size_t i = 0;
  VisitTensors(value, [&](torch::Tensor& tensor) { tensor = tensors[i++]; });
}

// Calls `first` now, under no_grad, and `again` in backward.
Tensors Run(Segment first, Segment again, Tensors inputs, const CheckpointModules& modules);

bool NeedsGradient(const Tensors& inputs, const CheckpointModules& modules);

template <typename T, typename = void>
struct PointsToModule : std::false_type {};
template <typename T>
struct PointsToModule<T, std::void_t<decltype(*std::declval<T&>())>>
    : std::is_base_of<torch::nn::Module, std::decay_t<decltype(*std::declval<T&>())>> {};

template <typename Args>
Tensors TensorsOfAll(Args& args) {
  Tensors tensors;
  std::apply(
      [&](auto&... arg) {
        (VisitTensors(arg, [&](const torch::Tensor& t) { tensors.push_back(t); }), ...);
      },
      args);
  return tensors;
}

template <typename Args>
void SetTensorsOfAll(Args& args, const Tensors& tensors) {
  size_t i = 0;
  std::apply(
      [&](auto&... arg) { (VisitTensors(arg, [&](torch::Tensor& t) { t = tensors[i++]; }), ...); },
      args);
}

}  // namespace checkpoint_internal

template <typename F, typename... Args>
auto CheckpointWith(const CheckpointModules& modules, F function, Args&&... args) {
  namespace internal = checkpoint_internal;
  using Stored = std::tuple<std::decay_t<Args>...>;
  using Result = std::decay_t<decltype(std::apply(function, std::declval<Stored>()))>;
  static_assert(HoldsTensors<Result>::value, "a segment returns tensors");
  Stored stored(std::forward<Args>(args)...);
  internal::Tensors inputs = internal::TensorsOfAll(stored);
  if (!internal::NeedsGradient(inputs, modules)) return std::apply(function, std::move(stored));
  // Autograd keeps the inputs, and lets go of them after backward.
  internal::SetTensorsOfAll(stored, internal::Tensors(inputs.size()));
  auto run = [function, stored](const internal::Tensors& values) mutable -> Result {
    Stored call = stored;
    internal::SetTensorsOfAll(call, values);
    return std::apply(function, std::move(call));
  };
  std::optional<Result> result;
  internal::Tensors outputs = internal::Run(
      [&result, run](const internal::Tensors& values) mutable {
        result.emplace(run(values));
        return internal::TensorsOf(*result);
      },
      [run](const internal::Tensors& values) mutable {
        Result repeated = run(values);
        return internal::TensorsOf(repeated);
      },
      std::move(inputs), modules);
  internal::SetTensors(*result, outputs);
  return *std::move(result);
}

// `segment` is a pointer to a module, or its holder, or a function that uses no parameters but
// those among its arguments.
template <typename T, typename... Args>
auto Checkpoint(T segment, Args&&... args) {
  if constexpr (checkpoint_internal::PointsToModule<T>::value) {
    return CheckpointWith(
        {segment->shared_from_this()},
        [segment](auto&&... inputs) mutable {
          return segment->forward(std::forward<decltype(inputs)>(inputs)...);
        },
        std::forward<Args>(args)...);
  } else {
    return CheckpointWith({}, std::move(segment), std::forward<Args>(args)...);
  }
}

// --- Offload ---
//
// Activation offload: what autograd saves for backward is kept in the host's memory meanwhile.
//
//   x = Offload(block, x, mask);                        a module, Sharded<> or not, or a function
//   x = OffloadWith({block}, [=](torch::Tensor x) {
//     return Checkpoint(block, x);                      of a segment only its inputs are saved
//   }, x);
//
//   forward   saved tensor ── Keep ──► host            backward   host ──► where it was
//
// Results and gradients are those of the plain call, to the same bits. What is in the host's memory
// already stays there and is not copied, so there this costs nothing and saves nothing; parameters
// of the modules stay where they are, as a cluster holds them (sharded.h). A tensor that stays and
// is changed in place before backward is an error, thrown by backward as StatusException:
// FailedPrecondition, naming its shape. What a segment computes again in backward is not kept
// elsewhere.
//
// Throws StatusException: Unimplemented  another library has replaced libtorch's autograd engine,
// as Python's does. Source: save_on_cpu of torch/autograd/graph.py.

// Where saved tensors are kept. Thread-safe: backward may run on another thread.
class SavedTensorStore {
 public:
  virtual ~SavedTensorStore() = default;
  // Returns what gives the same values back, on the same device, as often as it is called. It must
  // not hold `tensor` itself, which may own the graph that saves it; a detached one it may.
  virtual std::function<torch::Tensor()> Keep(const torch::Tensor& tensor) const = 0;
};

// Copies to `device` what is on another one; parameters of `modules`, and views of them, stay.
std::shared_ptr<const SavedTensorStore> StoreOn(torch::Device device,
                                                const CheckpointModules& modules);

// While one lives, what graphs of this thread save goes to `store`; of nested ones the innermost
// counts. Ends where it began, and in the reverse order. Throws as above.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(std::shared_ptr<const SavedTensorStore> store);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  const std::shared_ptr<const SavedTensorStore>& store() const { return store_; }

 private:
  const std::shared_ptr<const SavedTensorStore> store_;
  const SavedTensorScope* const outer_;
};

// `modules`: whose parameters the function uses.
template <typename F, typename... Args>
auto OffloadWith(const CheckpointModules& modules, F function, Args&&... args) {
  const SavedTensorScope scope(StoreOn(torch::kCPU, modules));
  return function(std::forward<Args>(args)...);
}

// `segment` is a pointer to a module, or its holder, or a function that uses no parameters.
template <typename T, typename... Args>
auto Offload(T segment, Args&&... args) {
  if constexpr (checkpoint_internal::PointsToModule<T>::value) {
    return OffloadWith(
        {segment->shared_from_this()},
        [&segment](auto&&... inputs) {
          return segment->forward(std::forward<decltype(inputs)>(inputs)...);
        },
        std::forward<Args>(args)...);
  } else {
    return OffloadWith({}, std::move(segment), std::forward<Args>(args)...);
  }
}

}  // namespace tessera

#endif  // TESSERA_TORCH_ACTIVATIONS_H_
