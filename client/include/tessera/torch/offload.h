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
#ifndef TESSERA_TORCH_OFFLOAD_H_
#define TESSERA_TORCH_OFFLOAD_H_

#include <functional>
#include <memory>
#include <utility>

#include "tessera/torch/activation_checkpoint.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

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

#endif  // TESSERA_TORCH_OFFLOAD_H_
