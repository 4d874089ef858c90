#include "tests/gpu/fault_device.h"
#include "tests/testing/fake_gpu.h"
#include "worker/device/cuda/cuda_error.h"

namespace tessera {
namespace gpu_check {

absl::StatusOr<std::unique_ptr<RankDevice>> MakeFaultDevice(const DeviceName& device) {
  return testing_support::MakeFakeGpuDevice(device);
}

absl::Status WriteToUnmapped(CudaStreamHandle*) {
  testing_support::FakeGpu()->Break(kCudaIllegalAddress);
  return absl::OkStatus();
}

}  // namespace gpu_check
}  // namespace tessera
