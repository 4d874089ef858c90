// Tensors of an attached model other than the job's parameters, buffers and ignored parameters, for
// saves and loads of the session.
#ifndef TESSERA_CLIENT_TORCH_TRAINER_TENSORS_H_
#define TESSERA_CLIENT_TORCH_TRAINER_TENSORS_H_

#include "tessera/checkpoint.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// In the dtypes that buffers had before attaching. The model outlives it.
TrainerTensors TrainerTensorsOf(ShardedModel* model);

// As target.copy_(values); a tensor of which several elements are one in memory, an expanded one,
// gets memory of its own first.
void SetTensor(torch::Tensor target, const torch::Tensor& values);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_TRAINER_TENSORS_H_
