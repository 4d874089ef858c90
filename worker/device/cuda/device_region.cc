#include "worker/device/cuda/device_region.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<int64_t> RoundUpToGranularity(int64_t size_bytes, int64_t granularity_bytes) {
  // Checked before the sum, which might overflow.
  if (size_bytes < 1 || granularity_bytes < 1 ||
      size_bytes > std::numeric_limits<int64_t>::max() - (granularity_bytes - 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no region of ", size_bytes, " bytes by a granularity of ", granularity_bytes));
  }
  return (size_bytes + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
}

absl::StatusOr<DeviceRegion> DeviceRegion::Create(const SharingDevice& device, int64_t size_bytes) {
  RETURN_IF_ERROR(device.Use());
  ASSIGN_OR_RETURN(const int64_t granularity,
                   device.api->MemGetAllocationGranularity(device.device));
  ASSIGN_OR_RETURN(const int64_t rounded, RoundUpToGranularity(size_bytes, granularity));
  // Memory that network devices can reach need not go through host memory between hosts.
  ASSIGN_OR_RETURN(const int rdma,
                   device.api->DeviceGetAttribute(
                       CudaAttribute::kGpuDirectRdmaWithMemCreateSupported, device.device));
  absl::StatusOr<CudaMemHandle> handle = device.api->MemCreate(device.device, rounded, rdma != 0);
  if (rdma != 0 && !handle.ok() && !absl::IsResourceExhausted(handle.status())) {
    // It is optional. Any other error is returned by the second call too.
    const absl::Status refused = handle.status();
    handle = device.api->MemCreate(device.device, rounded, /*gpu_direct_rdma=*/false);
    if (handle.ok()) {
      TESSERA_LOG(WARNING, "cuda:{}: no memory that network devices can reach: {}", device.device,
                  refused.ToString());
    }
  }
  RETURN_IF_ERROR(
      Annotate(device.NameWanted(handle.status(), rounded),
               absl::StrCat("cuda:", device.device, ": a region of ", rounded, " bytes")));
  DeviceRegion region;
  region.device_ = device;
  region.handle_ = *handle;
  region.size_bytes_ = rounded;
  return region;
}

DeviceRegion& DeviceRegion::operator=(DeviceRegion&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  device_ = other.device_;
  handle_ = std::exchange(other.handle_, 0);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

absl::StatusOr<UniqueFd> DeviceRegion::Export() const {
  RETURN_IF_ERROR(device_.Use());
  return device_.api->MemExportToShareableHandle(handle_);
}

void DeviceRegion::Reset() {
  // A region has at least one byte, so 0 says that there is none.
  if (size_bytes_ == 0) return;
  absl::Status status = device_.Use();
  status.Update(device_.api->MemRelease(handle_));
  if (!status.ok()) TESSERA_LOG(ERROR, "a device region was not released: {}", status.ToString());
  handle_ = 0;
  size_bytes_ = 0;
}

absl::StatusOr<Buffer> AllocateRegion(const SharingDevice& device, int64_t size_bytes) {
  ASSIGN_OR_RETURN(const DeviceRegion region, DeviceRegion::Create(device, size_bytes));
  ASSIGN_OR_RETURN(DeviceMapping mapping, region.Map(CudaAccess::kReadWrite));
  void* const data = mapping.data();  // The mapping holds the memory, once the region is gone.
  return Buffer(data, region.size_bytes(),
                [mapping = std::move(mapping)]() mutable { mapping.Reset(); });
}

}  // namespace tessera
