// libtorch's autograd engine with two additions: observers are told of each backward, and a
// function may store the tensors that graphs save. All that runs a graph goes through it:
// Tensor::backward(), grad(), and backwards inside of a backward.
//
// The engine takes over at the first use; backwards under way end where they began. All of this is
// thread-safe.
#ifndef TESSERA_CLIENT_TORCH_AUTOGRAD_ENGINE_H_
#define TESSERA_CLIENT_TORCH_AUTOGRAD_ENGINE_H_

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Is told of the backwards of all threads, on the thread that runs each; of one inside of another,
// between the other's begin and end. Both calls may throw; then the backward fails.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  // `nodes`: those that are going to run, each once. They live until the end. Returns whether this
  // backward concerns the observer; else it is not told of its end.
  virtual bool BeginBackward(const std::vector<torch::autograd::Node*>& nodes) = 0;
  // After all of it, what devices still compute included. `failed`: it threw.
  virtual void EndBackward(bool failed) = 0;
};

// Errors: Unimplemented  another library has replaced the engine, as Python's does.
absl::Status UseOwnEngine();

// Effective from the next backward on, until it is removed. Needs UseOwnEngine(). Not owned.
void ObserveBackwards(BackwardObserver* observer);
void StopObserving(BackwardObserver* observer);

// What is asked, on the thread, for each tensor that a graph saves; null: it is kept as ever.
using SavedTensorHooks = std::unique_ptr<torch::autograd::SavedVariableHooks> (*)();
void SetSavedTensorHooks(SavedTensorHooks hooks);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_AUTOGRAD_ENGINE_H_
