#include "worker/device/cuda/cuda_rank_device.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_rank_kernels.h"
#include "worker/device/cuda/cuda_shared_event.h"
#include "worker/device/cuda/device_region.h"
#include "worker/device/cuda/gpu_kernels.h"
#include "worker/device/cuda/in_process_regions.h"
#include "worker/device/cuda/offloaded_rank_kernels.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<CudaRankDevice>> CudaRankDevice::Create(CudaApi* api,
                                                                       const DeviceName& device) {
  CudaDevice::Options options;
  ASSIGN_OR_RETURN(options.device, FindCudaDevice(api, device, options.min_driver_version));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> made, CudaDevice::Create(api, options));
  return absl::WrapUnique(new CudaRankDevice(std::move(made)));
}

absl::StatusOr<Buffer> CudaRankDevice::MapRegion(int descriptor, int64_t size_bytes,
                                                 bool writable) {
  PrimaryContext* context = device_->context();
  if (IsPlaceholder(descriptor)) {  // This process's own memory, writable in all mappings here.
    ASSIGN_OR_RETURN(Buffer memory,
                     MapPlaceholder(context->api(), context->device(), descriptor, size_bytes));
    return Known(std::move(memory));
  }
  const SharingDevice sharing = {context->api(), context->device(), context};
  RETURN_IF_ERROR(sharing.Use());
  ASSIGN_OR_RETURN(const int64_t granularity,
                   sharing.api->MemGetAllocationGranularity(sharing.device));
  // As its creator has rounded it: mappings are of whole granules.
  ASSIGN_OR_RETURN(const int64_t rounded, RoundUpToGranularity(size_bytes, granularity));
  ASSIGN_OR_RETURN(DeviceMapping mapping,
                   DeviceMapping::Import(sharing, descriptor, rounded,
                                         writable ? CudaAccess::kReadWrite : CudaAccess::kRead));
  // Taken before the mapping moves into the closure.
  std::byte* data = mapping.data();
  return Known(
      Buffer(data, rounded, [mapping = std::move(mapping)]() mutable { mapping.Reset(); }));
}

absl::StatusOr<Buffer> CudaRankDevice::Allocate(int64_t size_bytes) {
  ASSIGN_OR_RETURN(Buffer memory, device_->Allocate(size_bytes));
  return memory.empty() ? std::move(memory) : Known(std::move(memory));
}

Buffer CudaRankDevice::Known(Buffer memory) {
  void* data = memory.data();
  const int64_t size_bytes = memory.size_bytes();
  const auto begin = reinterpret_cast<uintptr_t>(data);
  {
    absl::MutexLock lock(&mu_);
    // Asked by the address alone: kernels of an offloaded rank get pointers of both kinds.
    regions_[begin] = size_bytes;
  }
  return Buffer(data, size_bytes, [this, begin, memory = std::move(memory)]() mutable {
    // Forgotten first: the driver may give these addresses to other memory at once.
    {
      absl::MutexLock lock(&mu_);
      regions_.erase(begin);
    }
    memory.Reset();
  });
}

bool CudaRankDevice::IsOnDevice(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  absl::MutexLock lock(&mu_);
  // The last region that begins at or before the address.
  auto region = regions_.upper_bound(at);
  if (region == regions_.begin()) return false;
  --region;
  return at - region->first < static_cast<uint64_t>(region->second);
}

absl::StatusOr<std::unique_ptr<SharedEvent>> CudaRankDevice::CreateSharedEvent() {
  PrimaryContext* const context = device_->context();
  ASSIGN_OR_RETURN(const int supported, context->api()->DeviceGetAttribute(
                                            CudaAttribute::kIpcEventSupported, context->device()));
  if (supported == 0)
    return absl::UnimplementedError(
        absl::StrCat(context->name(), " has no events that processes share"));
  return CudaSharedEvent::Create(context);
}

absl::StatusOr<std::unique_ptr<SharedEvent>> CudaRankDevice::OpenSharedEvent(
    const SharedEventName& name) {
  auto event = CudaSharedEvent::Open(device_->context(), name);
  // One event that opened proves that events work here. Before that, a refusal is no creator's
  // death.
  if (event.ok()) opened_event_ = true;
  // A device without the feature must not look like a peer that ended.
  if (absl::IsUnavailable(event.status()) && !opened_event_ && device_->status().ok())
    return absl::FailedPreconditionError(event.status().message());
  return event;
}

absl::Status CudaRankDevice::Synchronize() {
  PrimaryContext* const context = device_->context();
  RETURN_IF_ERROR(context->Use());
  // All streams of the context, those of the user's code included.
  const absl::Status status = context->api()->CtxSynchronize();
  context->Check(status);
  return status;
}

absl::StatusOr<std::unique_ptr<SliceKernels>> CudaRankDevice::CreateSliceKernels(
    int64_t max_count) {
  return GpuKernels::Create(device_.get(), max_count);
}

absl::StatusOr<std::unique_ptr<RankKernels>> CudaRankDevice::CreateKernels(
    const KernelOptions& options) {
  if (!options.state_on_host)
    return CudaRankKernels::Create(device_.get(), options.max_count, options.stream);
  return OffloadedRankKernels::Create(device_.get(), options.max_count, options.stream,
                                      [this](const void* address) { return IsOnDevice(address); });
}

}  // namespace tessera
