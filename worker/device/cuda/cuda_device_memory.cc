#include "worker/device/cuda/cuda_device_memory.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/device_region.h"
#include "worker/device/cuda/in_process_regions.h"
#include "worker/device/cuda/keeper_memory.h"

namespace tessera {
namespace {

class CudaMemoryReader : public MemoryReader {
 public:
  CudaMemoryReader(std::unique_ptr<CudaDevice> device, DeviceMapping mapping,
                   std::unique_ptr<Stream> stream)
      : device_(std::move(device)), mapping_(std::move(mapping)), stream_(std::move(stream)) {}

  absl::Status Read(void* to, int64_t offset_bytes, int64_t size_bytes) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    device_->Copy(stream_.get(), to, mapping_.data() + offset_bytes, size_bytes);
    // Under the lock, so that the bytes are there when it returns.
    stream_->Synchronize();
    return device_->status();
  }

 private:
  const std::unique_ptr<CudaDevice> device_;
  const DeviceMapping mapping_;
  absl::Mutex mu_;  // One copy at a time.
  const std::unique_ptr<Stream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDeviceMemory::Create(CudaApi* api,
                                                                       const DeviceName& name) {
  // Executors will ask for as much.
  ASSIGN_OR_RETURN(const int device,
                   FindCudaDevice(api, name, CudaDevice::Options().min_driver_version));
  // By its UUID executors and trainers find the same GPU, whatever they number it.
  ASSIGN_OR_RETURN(const DeviceUuid uuid, api->DeviceGetUuid(device));
  const KeeperMemoryChoice choice = FindKeeperMemory(api, device);
  if (choice.where == KeeperMemory::kNowhere)
    return absl::FailedPreconditionError(absl::StrCat("cuda:", device, ": ", choice.reason));
  // The worker starts all the same: trainers that host their executors can use the GPU
  // (docs/adr/0043).
  if (choice.where == KeeperMemory::kInTrainer)
    return std::make_unique<InProcessDeviceMemory>(DeviceName(device, uuid), choice.reason);
  std::unique_ptr<PrimaryContext> context;
  if (choice.where == KeeperMemory::kWithContext) {
    ASSIGN_OR_RETURN(context,
                     PrimaryContext::Create(api, device, CudaDevice::Options().min_driver_version));
  }
  return absl::WrapUnique(new CudaDeviceMemory(api, device, uuid, std::move(context)));
}

absl::StatusOr<UniqueFd> CudaDeviceMemory::Create(const std::string& label, int64_t size_bytes) {
  const SharingDevice sharing = {api_, device_, context_.get()};
  // The descriptor holds the memory, so the region need not stay.
  absl::StatusOr<DeviceRegion> region = DeviceRegion::Create(sharing, size_bytes);
  // Without a context the driver does not say what is free, so it is asked with one.
  if (absl::IsResourceExhausted(region.status()) && context_ == nullptr) {
    return Annotate(absl::ResourceExhaustedError(
                        absl::StrCat(region.status().message(), ": ", DescribeFree(), " are free")),
                    label);
  }
  RETURN_IF_ERROR(Annotate(region.status(), label));
  return region->Export();
}

std::string CudaDeviceMemory::DescribeFree() const {
  // The driver tells nobody without a context.
  const auto own = PrimaryContext::Create(api_, device_, /*min_driver_version=*/0);
  if (!own.ok()) return "unknown bytes";
  const absl::StatusOr<CudaMemInfo> info = api_->MemGetInfo();
  (void)api_->CtxSetCurrent(nullptr);  // It goes.
  if (!info.ok()) return "unknown bytes";
  return absl::StrCat(info->free_bytes, " of ", info->total_bytes, " bytes");
}

absl::StatusOr<std::unique_ptr<MemoryReader>> CudaDeviceMemory::OpenReader(int descriptor,
                                                                           int64_t size_bytes) {
  CudaDevice::Options options;
  options.device = device_;
  // An error of it fails the read and belongs to no rank (docs/adr/0040).
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(api_, options));
  const SharingDevice sharing = {api_, device_, device->context()};
  RETURN_IF_ERROR(sharing.Use());
  ASSIGN_OR_RETURN(const int64_t granularity, api_->MemGetAllocationGranularity(device_));
  // As the creator rounded it: mappings are of whole granules.
  ASSIGN_OR_RETURN(const int64_t rounded, RoundUpToGranularity(size_bytes, granularity));
  ASSIGN_OR_RETURN(DeviceMapping mapping,
                   DeviceMapping::Import(sharing, descriptor, rounded, CudaAccess::kRead));
  ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device->CreateStream("state-reader"));
  return std::make_unique<CudaMemoryReader>(std::move(device), std::move(mapping),
                                            std::move(stream));
}

absl::StatusOr<UniqueFd> InProcessDeviceMemory::Create(const std::string& label,
                                                       int64_t size_bytes) {
  return CreatePlaceholder(label, size_bytes);
}

absl::StatusOr<std::unique_ptr<MemoryReader>> InProcessDeviceMemory::OpenReader(
    int /*descriptor*/, int64_t /*size_bytes*/) {
  return absl::UnimplementedError(
      absl::StrCat("cuda:", device_.number, ": no other process reads its memory: ", why_));
}

}  // namespace tessera
