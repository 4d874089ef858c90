#include "base/status_macros.h"
#include "tests/gpu/fault_device.h"
#include "tests/gpu/unmapped_write.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/executor/machine_devices.h"

namespace tessera {
namespace gpu_check {

absl::StatusOr<std::unique_ptr<RankDevice>> MakeFaultDevice(const DeviceName& device) {
  return MakeMachineRankDevice(device);
}

absl::Status WriteToUnmapped(CudaStreamHandle* stream) {
  ASSIGN_OR_RETURN(CudaApi* const api, LoadCudaApi());
  ASSIGN_OR_RETURN(const int64_t granule, api->MemGetAllocationGranularity(0));
  // Addresses that are nobody else's, and have no memory. They stay so: the process is to end.
  ASSIGN_OR_RETURN(const CudaAddress nowhere, api->MemAddressReserve(granule, granule));
  return CudaStatus("kernel WriteOne", LaunchWriteOne(stream, nowhere));
}

}  // namespace gpu_check
}  // namespace tessera
