// Memory of a GPU that its owner hands to other processes: the keeper's, of shards and gradients.
//
//   wanted 5 MiB, granularity 2 MiB  ──►  size_bytes() == 6 MiB, mapped anywhere, by anyone
//
// See device_mapping.h for what keeps the memory. Sizes are BYTES. Move-only, thread-compatible.
#ifndef TESSERA_WORKER_DEVICE_CUDA_DEVICE_REGION_H_
#define TESSERA_WORKER_DEVICE_CUDA_DEVICE_REGION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/device/buffer.h"
#include "worker/device/cuda/device_mapping.h"

namespace tessera {

// The least multiple of `granularity_bytes` that holds `size_bytes`. Pure.
// Errors: InvalidArgument  size_bytes < 1, granularity_bytes < 1, or the multiple overflows
absl::StatusOr<int64_t> RoundUpToGranularity(int64_t size_bytes, int64_t granularity_bytes);

class DeviceRegion {
 public:
  // Memory with undefined content, of at least `size_bytes`.
  // Errors: InvalidArgument    size_bytes < 1, or too large for any machine
  //         ResourceExhausted  the device has no memory left: the message has the size and, with a
  //                            context, what is free
  //         FailedPrecondition, Unimplemented, Internal, Unavailable  see cuda_error.h
  static absl::StatusOr<DeviceRegion> Create(const SharingDevice& device, int64_t size_bytes);

  DeviceRegion() = default;
  ~DeviceRegion() { Reset(); }
  DeviceRegion(DeviceRegion&& other) noexcept { *this = std::move(other); }
  DeviceRegion& operator=(DeviceRegion&& other) noexcept;
  DeviceRegion(const DeviceRegion&) = delete;
  DeviceRegion& operator=(const DeviceRegion&) = delete;

  // A descriptor to send; close it right after, for it holds the memory.
  // Errors: Unimplemented       the device or driver has no such descriptors
  //         FailedPrecondition  the system refuses one
  absl::StatusOr<UniqueFd> Export() const;

  // Errors: those of DeviceMapping::Map
  absl::StatusOr<DeviceMapping> Map(CudaAccess access) const {
    return DeviceMapping::Map(device_, handle_, size_bytes_, access);
  }

  int64_t size_bytes() const { return size_bytes_; }
  void Reset();

 private:
  SharingDevice device_;
  CudaMemHandle handle_ = 0;
  int64_t size_bytes_ = 0;
};

// Memory of the same kind for this process alone, mapped; undefined content. `device` outlives it.
// Errors: those of DeviceRegion::Create and DeviceMapping::Map
absl::StatusOr<Buffer> AllocateRegion(const SharingDevice& device, int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_DEVICE_REGION_H_
