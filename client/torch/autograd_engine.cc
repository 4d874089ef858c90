#include "client/torch/autograd_engine.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <atomic>
#include <typeinfo>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace tessera {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::SavedVariableHooks;
using torch::autograd::variable_list;

std::atomic<SavedTensorHooks> saved_tensor_hooks{nullptr};

class Observers {
 public:
  static Observers& Get() {
    static auto* const observers = new Observers;
    return *observers;
  }
  void Add(BackwardObserver* observer) {
    absl::MutexLock lock(&mu_);
    observers_.push_back(observer);
  }
  void Remove(BackwardObserver* observer) {
    absl::MutexLock lock(&mu_);
    observers_.erase(std::remove(observers_.begin(), observers_.end(), observer), observers_.end());
  }
  bool empty() const {
    absl::ReaderMutexLock lock(&mu_);
    return observers_.empty();
  }
  // None of them goes meanwhile. `told`: those whose concern it is, also where one of them throws.
  void Begin(const std::vector<Node*>& nodes, std::vector<BackwardObserver*>* told) const {
    absl::ReaderMutexLock lock(&mu_);
    for (BackwardObserver* observer : observers_)
      if (observer->BeginBackward(nodes)) told->push_back(observer);
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<BackwardObserver*> observers_ ABSL_GUARDED_BY(mu_);
};

// Which nodes a backward from `roots` runs: all that it reaches, or, where only gradients at
// `outputs` are wanted, those on a way to one. Source: GraphTask::init_to_execute.
class NodesToRun {
 public:
  NodesToRun(const edge_list& outputs, bool accumulates)
      : all_(outputs.empty()), accumulates_(accumulates) {
    // An edge without a function is of a tensor that needs no gradient.
    for (const auto& edge : outputs)
      if (edge.function != nullptr) wanted_[edge.function.get()] = true;
  }

  // Depth first without recursion: graphs of deep models would overflow the stack.
  std::vector<Node*> Find(const edge_list& roots) {
    for (const auto& edge : roots) Visit(edge.function.get());
    while (!stack_.empty()) {
      auto& [node, next_edge] = stack_.back();
      if (next_edge < node->num_outputs()) {
        Visit(node->next_edge(next_edge++).function.get());
        continue;
      }
      Node* const done = node;
      stack_.pop_back();
      Leave(done);
    }
    return std::move(nodes_);
  }

 private:
  void Visit(Node* node) {
    if (node != nullptr && leads_there_.emplace(node, false).second) stack_.emplace_back(node, 0);
  }

  // All that it leads to has been left.
  void Leave(Node* node) {
    const bool is_wanted = wanted_.count(node) > 0;
    // Without accumulation a wanted node's gradient is captured before it, and the node does not
    // run.
    bool runs = all_ || (is_wanted && accumulates_);
    for (size_t i = 0; i < node->num_outputs() && !runs; ++i) {
      const auto next = leads_there_.find(node->next_edge(i).function.get());
      runs = next != leads_there_.end() && next->second;
    }
    if (runs) nodes_.push_back(node);
    leads_there_[node] = runs || is_wanted;
  }

  const bool all_, accumulates_;
  absl::flat_hash_map<Node*, bool> wanted_;
  absl::flat_hash_map<Node*, bool> leads_there_;
  std::vector<std::pair<Node*, uint32_t>> stack_;  // And the next of its edges.
  std::vector<Node*> nodes_;
};

class OwnEngine : public Engine {
 public:
  static Engine& Get() {
    static auto* const engine = new OwnEngine;  // Its threads may outlive main.
    return *engine;
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    // Acquire: pairs with the store in SetSavedTensorHooks.
    const SavedTensorHooks hooks = saved_tensor_hooks.load(std::memory_order_acquire);
    return hooks == nullptr ? nullptr : hooks();
  }
  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    const auto run = [&] {
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    };
    // No model is attached: the graph is not walked.
    if (Observers::Get().empty()) return run();
    // Before it runs: nodes are freed while it does.
    const std::vector<Node*> nodes = NodesToRun(outputs, accumulate_grad).Find(roots);
    std::vector<BackwardObserver*> told;
    const auto end = [&told](bool failed) {
      // Taken off first: EndBackward may throw, and must not be called twice.
      BackwardObserver* const last = told.back();
      told.pop_back();
      last->EndBackward(failed);
    };
    try {
      Observers::Get().Begin(nodes, &told);
      variable_list gradients = run();
      // In reverse order, as scopes end.
      while (!told.empty()) end(/*failed=*/false);
      return gradients;
    } catch (...) {
      while (!told.empty()) end(/*failed=*/true);
      throw;
    }
  }
};

}  // namespace

absl::Status UseOwnEngine() {
  Engine& engine = Engine::get_default_engine();
  if (&engine == &OwnEngine::Get()) return absl::OkStatus();
  // A subclass of someone else: replacing it would break what it does.
  if (typeid(engine) != typeid(Engine)) {
    return absl::UnimplementedError(
        "autograd's engine is another library's, as in a Python process, where backwards cannot be "
        "followed from C++");
  }
  torch::autograd::set_default_engine_stub(&OwnEngine::Get);
  return absl::OkStatus();
}

void ObserveBackwards(BackwardObserver* observer) { Observers::Get().Add(observer); }

void StopObserving(BackwardObserver* observer) { Observers::Get().Remove(observer); }

void SetSavedTensorHooks(SavedTensorHooks hooks) {
  saved_tensor_hooks.store(hooks, std::memory_order_release);
}

}  // namespace tessera
