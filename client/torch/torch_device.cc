#include "client/torch/torch_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

#include "tessera/device_gradients.h"

namespace tessera {
namespace {

std::atomic<bool> gpus_are_of_the_processor{false};

}  // namespace

torch::Device DeviceOf(const Session& session) {
  // device() changes nothing, although DeviceGradients takes a session that it may change.
  const int device = DeviceGradients(const_cast<Session*>(&session)).device();
  if (device < 0 || gpus_are_of_the_processor.load()) return torch::kCPU;
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(device)};
}

void AwaitStreamOf(const torch::Device& device) {
  // On the CPU operations are done when they return.
  if (device.is_cpu() || device.is_meta()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

ScopedProcessorTensors::ScopedProcessorTensors() { gpus_are_of_the_processor.store(true); }
ScopedProcessorTensors::~ScopedProcessorTensors() { gpus_are_of_the_processor.store(false); }

}  // namespace tessera
