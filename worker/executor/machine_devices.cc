#include "worker/executor/machine_devices.h"

#include <stdlib.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/mps.h"
#include "worker/device/host/host_rank_device.h"

namespace tessera {
namespace {

absl::StatusOr<CudaApi*> ApiFor(const DeviceName& device) {
  absl::StatusOr<CudaApi*> api = LoadCudaApi();
  if (!api.ok())
    return Annotate(api.status(),
                    absl::StrCat(device.number == kNoNumber ? "" : "GPU ", ToText(device)));
  return api;
}

// The driver's own variable, which executors inherit; trainers have their own environment.
std::string DescribeMps() {
  const char* folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  return JudgeMps(ProbeMps(folder == nullptr ? kDefaultMpsFolder : folder)).reason;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> MakeMachineRankDevice(const DeviceName& device) {
  if (device.is_host()) return MakeHostRankDevice(device);
  ASSIGN_OR_RETURN(CudaApi* const api, ApiFor(device));
  return CudaRankDevice::Create(api, device);
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> MakeMachineDeviceMemory(const DeviceName& device) {
  ASSIGN_OR_RETURN(CudaApi* const api, ApiFor(device));
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> memory, CudaDeviceMemory::Create(api, device));
  TESSERA_LOG(INFO, "executors and trainers on cuda:{}, {}: {}", memory->device().number,
              UuidText(memory->device().uuid), DescribeMps());
  return memory;
}

}  // namespace tessera
