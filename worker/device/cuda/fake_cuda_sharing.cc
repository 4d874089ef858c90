// FakeCudaApi: memory that processes share.
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {

absl::StatusOr<int64_t> FakeCudaApi::MemGetAllocationGranularity(int device) {
  RETURN_IF_ERROR(EnterSharing("MemGetAllocationGranularity"));
  RETURN_IF_ERROR(CheckDevice("cuMemGetAllocationGranularity", device));
  return options_.granularity_bytes;
}

absl::StatusOr<CudaMemHandle> FakeCudaApi::MemCreate(int device, int64_t size_bytes,
                                                     bool gpu_direct_rdma) {
  RETURN_IF_ERROR(EnterSharing("MemCreate"));
  RETURN_IF_ERROR(CheckDevice("cuMemCreate", device));
  if (gpu_direct_rdma && (!options_.gpu_direct_rdma || options_.rdma_is_refused))
    return CudaStatus("cuMemCreate", kCudaInvalidValue);
  CudaMemHandle handle = 0;
  RETURN_IF_ERROR(CudaStatus("cuMemCreate", memory_.Create(size_bytes, &handle)));
  if (gpu_direct_rdma) ++num_for_rdma_;
  return handle;
}

absl::Status FakeCudaApi::MemRelease(CudaMemHandle handle) {
  RETURN_IF_ERROR(EnterSharing("MemRelease"));
  return CudaStatus("cuMemRelease", memory_.Release(handle));
}

absl::StatusOr<UniqueFd> FakeCudaApi::MemExportToShareableHandle(CudaMemHandle handle) {
  RETURN_IF_ERROR(EnterSharing("MemExportToShareableHandle"));
  if (!options_.descriptors) return CudaStatus("cuMemExportToShareableHandle", kCudaNotSupported);
  RETURN_IF_ERROR(CudaStatus("cuMemExportToShareableHandle", options_.export_error));
  UniqueFd descriptor;
  RETURN_IF_ERROR(CudaStatus("cuMemExportToShareableHandle", memory_.Export(handle, &descriptor)));
  return descriptor;
}

absl::StatusOr<CudaMemHandle> FakeCudaApi::MemImportFromShareableHandle(int descriptor) {
  RETURN_IF_ERROR(EnterSharing("MemImportFromShareableHandle"));
  RETURN_IF_ERROR(CudaStatus("cuMemImportFromShareableHandle", options_.import_error));
  CudaMemHandle handle = 0;
  RETURN_IF_ERROR(
      CudaStatus("cuMemImportFromShareableHandle", memory_.Import(descriptor, &handle)));
  return handle;
}

absl::StatusOr<CudaAddress> FakeCudaApi::MemAddressReserve(int64_t size_bytes,
                                                           int64_t alignment_bytes) {
  RETURN_IF_ERROR(EnterSharing("MemAddressReserve"));
  CudaAddress address = 0;
  RETURN_IF_ERROR(
      CudaStatus("cuMemAddressReserve", memory_.Reserve(size_bytes, alignment_bytes, &address)));
  return address;
}

absl::Status FakeCudaApi::MemAddressFree(CudaAddress address, int64_t size_bytes) {
  RETURN_IF_ERROR(EnterSharing("MemAddressFree"));
  return CudaStatus("cuMemAddressFree", memory_.FreeAddress(address, size_bytes));
}

absl::Status FakeCudaApi::MemMap(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) {
  RETURN_IF_ERROR(EnterSharing("MemMap"));
  return CudaStatus("cuMemMap", memory_.Map(address, size_bytes, handle));
}

absl::Status FakeCudaApi::MemUnmap(CudaAddress address, int64_t size_bytes) {
  RETURN_IF_ERROR(EnterSharing("MemUnmap"));
  return CudaStatus("cuMemUnmap", memory_.Unmap(address, size_bytes));
}

absl::Status FakeCudaApi::MemSetAccess(CudaAddress address, int64_t size_bytes, int device,
                                       CudaAccess access) {
  RETURN_IF_ERROR(EnterSharing("MemSetAccess"));
  RETURN_IF_ERROR(CheckDevice("cuMemSetAccess", device));
  return CudaStatus("cuMemSetAccess", memory_.SetAccess(address, size_bytes, access));
}

}  // namespace tessera
