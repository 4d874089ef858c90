#include "client/torch/cluster_tensor.h"

namespace tessera {
namespace {

// Its address is the mark: storages of other tensors have other deleters.
void KeepMemory(void*) {}

}  // namespace

torch::Tensor ClusterTensor(void* address, torch::IntArrayRef shape,
                            const torch::TensorOptions& options) {
  // libtorch calls no deleter, and so keeps none, where the context is null.
  return at::for_blob(address, shape).context(address, KeepMemory).options(options).make_tensor();
}

bool IsClusterTensor(const torch::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == KeepMemory;
}

}  // namespace tessera
