#include "worker/device/cuda/cuda_device_memory.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/device_region.h"
#include "worker/device/cuda/keeper_memory.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<CudaDeviceMemory>> CudaDeviceMemory::Create(CudaApi* api,
                                                                           int device) {
  const KeeperMemoryChoice choice = FindKeeperMemory(api, device);
  if (choice.where == KeeperMemory::kInExecutor) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cuda:", device, ": its memory cannot be shared between processes: ", choice.reason));
  }
  std::unique_ptr<PrimaryContext> context;
  if (choice.where == KeeperMemory::kWithContext) {
    ASSIGN_OR_RETURN(context, PrimaryContext::Create(api, device,
                                                     CudaDevice::Options().min_driver_version));
  }
  return absl::WrapUnique(new CudaDeviceMemory(api, device, std::move(context)));
}

absl::StatusOr<UniqueFd> CudaDeviceMemory::Create(const std::string& label, int64_t size_bytes) {
  const SharingDevice sharing = {api_, device_, context_.get()};
  // The descriptor holds the memory, so the region need not stay.
  absl::StatusOr<DeviceRegion> region = DeviceRegion::Create(sharing, size_bytes);
  RETURN_IF_ERROR(Annotate(region.status(), label));
  return region->Export();
}

}  // namespace tessera
