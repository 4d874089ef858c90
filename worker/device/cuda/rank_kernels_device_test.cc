// Compares a GPU's RankKernels with the host's, with a rank's state on the device and offloaded.
// Built twice: over the machine's device, where it has one, and, with TESSERA_KERNELS_ON_HOST, over
// loops of the host in the kernels' place and a fake driver.
#include <utility>

#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/rank_kernels_conformance.h"
#ifdef TESSERA_KERNELS_ON_HOST
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/kernel_launch_on_host.h"
#endif

namespace tessera {
namespace {

#ifdef TESSERA_KERNELS_ON_HOST
FakeCudaApi* Fake() {
  static auto* const api = new FakeCudaApi();
  return api;
}

absl::StatusOr<CudaApi*> LoadApi() {
  gpu::AwaitStreamsBeforeLaunches(
      [](void* stream) { Fake()->AwaitStream(static_cast<CudaStreamHandle*>(stream)); });
  return Fake();
}
#else
absl::StatusOr<CudaApi*> LoadApi() { return LoadCudaApi(); }
#endif

absl::StatusOr<RankKernelsBackend::Made> MakeGpu() {
  const absl::StatusOr<CudaApi*> api = LoadApi();
  if (!api.ok()) return absl::UnavailableError(api.status().message());
  RankKernelsBackend::Made made;
  absl::StatusOr<std::unique_ptr<CudaRankDevice>> device = CudaRankDevice::Create(*api, 0);
  if (absl::IsNotFound(device.status())) return absl::UnavailableError(device.status().message());
  ASSIGN_OR_RETURN(made.device, std::move(device));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> memory, CudaDeviceMemory::Create(*api, 0));
  ASSIGN_OR_RETURN(made.region, memory->Create("test", RankKernelsBackend::kRegionBytes));
  return made;
}

INSTANTIATE_TEST_SUITE_P(Gpu, RankKernelsConformanceTest,
                         testing::Values(RankKernelsBackend{"OnTheGpu", false, MakeGpu},
                                         RankKernelsBackend{"Offloaded", true, MakeGpu}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera
