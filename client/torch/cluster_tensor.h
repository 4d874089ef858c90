// Parameters in a job's memory, told apart from a trainer's own tensors.
#ifndef TESSERA_CLIENT_TORCH_CLUSTER_TENSOR_H_
#define TESSERA_CLIENT_TORCH_CLUSTER_TENSOR_H_

#include "tessera/torch/libtorch.h"

namespace tessera {

// A tensor over memory of a job at `address`, not owned.
torch::Tensor ClusterTensor(void* address, torch::IntArrayRef shape,
                            const torch::TensorOptions& options);

// Whether the tensor, or what it is a view of, is one: a ShardedModel of this process has it.
bool IsClusterTensor(const torch::Tensor& tensor);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_CLUSTER_TENSOR_H_
