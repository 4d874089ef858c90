// Memory of a GPU in this process's addresses, whichever process it was made in.
//
//   keeper    DeviceRegion ──Export──► descriptor ──(Unix socket)──► executor, trainer
//   any       DeviceMapping::Import(descriptor, size) ──► data()
//
// A mapping, like a region or a descriptor, keeps the memory: it goes when the last of them, of
// all processes, is gone. Nothing of the descriptor is kept: close it right after Import. Sizes
// are BYTES, multiples of the device's granularity. Move-only, thread-compatible.
#ifndef TESSERA_WORKER_DEVICE_CUDA_DEVICE_MAPPING_H_
#define TESSERA_WORKER_DEVICE_CUDA_DEVICE_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/cuda_context.h"

namespace tessera {

// The API for the calls that share memory. Outlives everything made from it.
struct SharingDevice {
  CudaApi* api = nullptr;
  int device = 0;
  PrimaryContext* context = nullptr;  // Null: the calls need none (see ChooseKeeperMemory).

  absl::Status Use() const { return context == nullptr ? absl::OkStatus() : context->Use(); }
  // As NameWantedMemory; without a context what is free is not asked.
  absl::Status NameWanted(const absl::Status& status, int64_t wanted_bytes) const {
    return context == nullptr ? status : NameWantedMemory(api, status, wanted_bytes);
  }
};

class DeviceMapping {
 public:
  // Maps memory whose descriptor another process sent, with the size that it said. Reads through a
  // read-only mapping work as ever; a write is an error of the device that breaks its context.
  // Errors: InvalidArgument     the descriptor is not of such memory, the memory is smaller than
  //                             `size_bytes`, or that is not a multiple of the granularity
  //         FailedPrecondition  the system refuses the descriptor, or a context is missing
  //         ResourceExhausted   no addresses are left: with a context, the message has the bytes
  //         Internal, Unavailable, Unimplemented  see cuda_error.h
  static absl::StatusOr<DeviceMapping> Import(const SharingDevice& device, int descriptor,
                                              int64_t size_bytes, CudaAccess access);
  // Maps memory of this process. `handle` stays the caller's. Errors: as Import.
  static absl::StatusOr<DeviceMapping> Map(const SharingDevice& device, CudaMemHandle handle,
                                           int64_t size_bytes, CudaAccess access);

  DeviceMapping() = default;
  ~DeviceMapping() { Reset(); }
  DeviceMapping(DeviceMapping&& other) noexcept { *this = std::move(other); }
  DeviceMapping& operator=(DeviceMapping&& other) noexcept;
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  int64_t size_bytes() const { return size_bytes_; }

  // Unmaps. Work that uses the memory must be complete. What fails is logged.
  void Reset();

 private:
  absl::Status MapNow(CudaMemHandle handle, int64_t size_bytes, CudaAccess access);

  SharingDevice device_;
  CudaAddress address_ = 0;
  int64_t size_bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_DEVICE_MAPPING_H_
