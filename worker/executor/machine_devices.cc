#include "worker/executor/machine_devices.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/memory/host_rank_device.h"

namespace tessera {
namespace {

absl::StatusOr<CudaApi*> ApiFor(int device) {
  absl::StatusOr<CudaApi*> api = LoadCudaApi();
  if (!api.ok()) return Annotate(api.status(), absl::StrCat("GPU ", device));
  return api;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> MakeMachineRankDevice(int device) {
  if (device == kHostDevice) return MakeHostRankDevice(device);
  ASSIGN_OR_RETURN(CudaApi* const api, ApiFor(device));
  return CudaRankDevice::Create(api, device);
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> MakeMachineDeviceMemory(int device) {
  ASSIGN_OR_RETURN(CudaApi* const api, ApiFor(device));
  return CudaDeviceMemory::Create(api, device);
}

}  // namespace tessera
