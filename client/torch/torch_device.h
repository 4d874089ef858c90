// Where the tensors of a session's parameters are for libtorch, and when its work there is done.
#ifndef TESSERA_CLIENT_TORCH_TORCH_DEVICE_H_
#define TESSERA_CLIENT_TORCH_TORCH_DEVICE_H_

#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

// The CPU, or the rank's GPU.
torch::Device DeviceOf(const Session& session);

// Waits for all work queued so far on the calling thread's stream of the tensors' GPU; for CPU
// tensors there is nothing to wait for.
void AwaitStreamOf(const torch::Device& device);

// For tests whose GPUs are fakes, in host memory: while one lives, tensors in their memory are CPU
// tensors of libtorch. From before the first session is attached until the last has ended.
class ScopedProcessorTensors {
 public:
  ScopedProcessorTensors();
  ~ScopedProcessorTensors();
  ScopedProcessorTensors(const ScopedProcessorTensors&) = delete;
  ScopedProcessorTensors& operator=(const ScopedProcessorTensors&) = delete;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_TORCH_DEVICE_H_
