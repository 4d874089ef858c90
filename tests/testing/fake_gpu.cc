#include "tests/testing/fake_gpu.h"

#include "base/check.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/kernel_launch_on_host.h"
#include "worker/device/host/host_rank_device.h"

namespace tessera::testing_support {

FakeCudaApi* FakeGpu() {
  static FakeCudaApi* const api = [] {
    gpu::AwaitStreamsBeforeLaunches(
        [](void* stream) { FakeGpu()->AwaitStream(static_cast<CudaStreamHandle*>(stream)); });
    return new FakeCudaApi();
  }();
  return api;
}

absl::StatusOr<std::unique_ptr<RankDevice>> MakeFakeGpuDevice(const DeviceName& device) {
  if (device.is_host()) return MakeHostRankDevice(device);
  return CudaRankDevice::Create(FakeGpu(), device);
}

std::shared_ptr<DeviceMemory> FakeGpuMemory() {
  auto memory = CudaDeviceMemory::Create(FakeGpu(), 0);
  TESSERA_CHECK(memory.ok());
  return *std::move(memory);
}

std::shared_ptr<DeviceMemory> FakeGpuMemoryInProcess() {
  static FakeCudaApi* const api = [] {
    FakeCudaApi::Options options;
    options.descriptors = false;
    return new FakeCudaApi(options);
  }();
  auto memory = CudaDeviceMemory::Create(api, 0);
  TESSERA_CHECK(memory.ok());
  TESSERA_CHECK(api->Held().empty());
  return *std::move(memory);
}

}  // namespace tessera::testing_support
