#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/torch/autograd_engine.h"
#include "tessera/torch/activations.h"

namespace tessera {
namespace {

using torch::autograd::SavedVariableHooks;

thread_local const SavedTensorScope* innermost = nullptr;

// One saved tensor.
class StoredTensor : public SavedVariableHooks {
 public:
  explicit StoredTensor(std::shared_ptr<const SavedTensorStore> store) : store_(std::move(store)) {}

  // Called once, when the graph saves the tensor.
  void call_pack_hook(const at::Tensor& tensor) override { give_back_ = store_->Keep(tensor); }
  at::Tensor call_unpack_hook() override { return give_back_(); }

 private:
  const std::shared_ptr<const SavedTensorStore> store_;
  std::function<torch::Tensor()> give_back_;
};

std::unique_ptr<SavedVariableHooks> HooksOfInnermost() {
  return innermost == nullptr ? nullptr : std::make_unique<StoredTensor>(innermost->store());
}

const c10::StorageImpl* StorageOf(const torch::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

class DeviceStore : public SavedTensorStore {
 public:
  DeviceStore(torch::Device device, const CheckpointModules& modules) : device_(device) {
    for (const auto& module : modules) {
      for (const torch::Tensor& parameter : module->parameters()) {
        if (parameter.defined() && parameter.has_storage())
          parameters_.insert(StorageOf(parameter));
      }
    }
  }

  std::function<torch::Tensor()> Keep(const torch::Tensor& tensor) const override {
    // Detached: the tensor itself may own the graph that saves it, which would never be freed.
    const torch::Tensor alias = tensor.detach();
    // What is on the store's device stays, and parameters stay where the cluster holds them.
    if (tensor.device().type() != device_.type() && parameters_.count(StorageOf(alias)) == 0)
      return [copy = alias.to(device_), from = tensor.device()] { return copy.to(from); };
    // It counts changes together with what it is an alias of.
    return [alias, version = alias._version()] {
      if (alias._version() == version) return alias;
      throw StatusException(absl::FailedPreconditionError(
          absl::StrCat("offload: a saved tensor of shape [", absl::StrJoin(alias.sizes(), ", "),
                       "] was changed in place before backward")));
    };
  }

 private:
  const torch::Device device_;
  std::unordered_set<const c10::StorageImpl*> parameters_;
};

}  // namespace

std::shared_ptr<const SavedTensorStore> StoreOn(torch::Device device,
                                                const CheckpointModules& modules) {
  return std::make_shared<DeviceStore>(device, modules);
}

SavedTensorScope::SavedTensorScope(std::shared_ptr<const SavedTensorStore> store)
    : store_(std::move(store)), outer_(innermost) {
  // Before the scope counts: an error here leaves nothing behind.
  const absl::Status status = UseOwnEngine();
  if (!status.ok()) throw StatusException(status);
  // Set each time: it is one pointer for all threads, and asks for this thread's scope.
  SetSavedTensorHooks(&HooksOfInnermost);
  innermost = this;
}

SavedTensorScope::~SavedTensorScope() { innermost = outer_; }

}  // namespace tessera
