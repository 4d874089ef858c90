#include "worker/device/cuda/device_mapping.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

void LogIfError(const absl::Status& status) {
  if (!status.ok()) TESSERA_LOG(ERROR, "device memory was not released: {}", status.ToString());
}

}  // namespace

absl::StatusOr<DeviceMapping> DeviceMapping::Import(const SharingDevice& device, int descriptor,
                                                    int64_t size_bytes, CudaAccess access) {
  RETURN_IF_ERROR(device.Use());
  absl::StatusOr<CudaMemHandle> handle = device.api->MemImportFromShareableHandle(descriptor);
  RETURN_IF_ERROR(
      Annotate(device.NameWanted(handle.status(), size_bytes), "memory of another process"));
  absl::StatusOr<DeviceMapping> mapping = Map(device, *handle, size_bytes, access);
  // The mapping holds the memory by itself.
  const absl::Status released = device.api->MemRelease(*handle);
  if (!mapping.ok()) return Annotate(mapping.status(), "memory of another process");
  RETURN_IF_ERROR(released);
  return mapping;
}

absl::StatusOr<DeviceMapping> DeviceMapping::Map(const SharingDevice& device, CudaMemHandle handle,
                                                 int64_t size_bytes, CudaAccess access) {
  RETURN_IF_ERROR(device.Use());
  DeviceMapping mapping;  // Gives back what was done before an error.
  mapping.device_ = device;
  const absl::Status mapped = mapping.MapNow(handle, size_bytes, access);
  RETURN_IF_ERROR(device.NameWanted(mapped, size_bytes));
  return mapping;
}

absl::Status DeviceMapping::MapNow(CudaMemHandle handle, int64_t size_bytes, CudaAccess access) {
  ASSIGN_OR_RETURN(address_, device_.api->MemAddressReserve(size_bytes, 0));
  size_bytes_ = size_bytes;
  RETURN_IF_ERROR(device_.api->MemMap(address_, size_bytes, handle));
  mapped_ = true;
  // A mapping without access faults, so this belongs to it.
  return device_.api->MemSetAccess(address_, size_bytes, device_.device, access);
}

DeviceMapping& DeviceMapping::operator=(DeviceMapping&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  device_ = other.device_;
  address_ = std::exchange(other.address_, 0);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  mapped_ = std::exchange(other.mapped_, false);
  return *this;
}

void DeviceMapping::Reset() {
  if (address_ == 0) return;
  // Errors are logged only: destructors call this, and the rest is released as well as it can.
  LogIfError(device_.Use());
  if (mapped_) LogIfError(device_.api->MemUnmap(address_, size_bytes_));
  // After the unmapping: a range that is mapped cannot be freed.
  LogIfError(device_.api->MemAddressFree(address_, size_bytes_));
  address_ = 0;
  size_bytes_ = 0;
  mapped_ = false;
}

}  // namespace tessera
