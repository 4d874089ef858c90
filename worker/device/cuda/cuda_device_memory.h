// A keeper's memory of a GPU, as descriptors (see device_memory.h and keeper_memory.h).
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_MEMORY_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_MEMORY_H_

#include <memory>
#include <string>
#include <utility>

#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device_memory.h"

namespace tessera {

class CudaDeviceMemory : public DeviceMemory {
 public:
  // Finds out whether descriptors work, and whether they do without a context, and says so in the
  // log; where they do not, it gives an InProcessDeviceMemory. `api` outlives it.
  // Errors: FailedPrecondition  the device has failed meanwhile
  //         those of PrimaryContext::Create, for what a rank's device needs
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Create(CudaApi* api,
                                                              const DeviceName& device);

  DeviceName device() const override { return {device_, uuid_}; }
  absl::StatusOr<UniqueFd> Create(const std::string& label, int64_t size_bytes) override;
  // With a context of its own, where the keeper has none.
  absl::StatusOr<std::unique_ptr<MemoryReader>> OpenReader(int descriptor,
                                                           int64_t size_bytes) override;

 private:
  CudaDeviceMemory(CudaApi* api, int device, const DeviceUuid& uuid,
                   std::unique_ptr<PrimaryContext> context)
      : api_(api), device_(device), uuid_(uuid), context_(std::move(context)) {}

  std::string DescribeFree() const;  // "1 of 2 bytes".

  CudaApi* const api_;
  const int device_;  // In this process.
  const DeviceUuid uuid_;
  const std::unique_ptr<PrimaryContext> context_;  // Null: the calls need none.
};

// That of a GPU whose driver passes no memory between processes: names for what trainers' processes
// allocate. Neither uses the driver nor takes room on the device.
class InProcessDeviceMemory : public DeviceMemory {
 public:
  // `device` with its UUID; `why` is not empty.
  InProcessDeviceMemory(DeviceName device, std::string why)
      : device_(device), why_(std::move(why)) {}

  DeviceName device() const override { return device_; }
  std::string why_not_shared() const override { return why_; }
  // Errors: as CreatePlaceholder
  absl::StatusOr<UniqueFd> Create(const std::string& label, int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<MemoryReader>> OpenReader(int descriptor,
                                                           int64_t size_bytes) override;

 private:
  const DeviceName device_;
  const std::string why_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_MEMORY_H_
