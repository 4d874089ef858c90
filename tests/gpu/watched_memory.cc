#include "tests/gpu/watched_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/gpu_kernels.h"

namespace tessera {
namespace gpu_check {
namespace {

// Whole words of a region.
class Summing {
 public:
  static absl::StatusOr<Summing> Create(RankDevice* device) {
    Summing summing;
    summing.device_ = device;
    if (!device->is_separate()) return absl::InvalidArgumentError("checksums need a GPU");
    CudaDevice* const cuda = static_cast<CudaRankDevice*>(device)->cuda_device();
    ASSIGN_OR_RETURN(summing.kernels_, GpuKernels::Create(cuda, 1));
    ASSIGN_OR_RETURN(summing.stream_, cuda->CreateStream("checksum"));
    ASSIGN_OR_RETURN(summing.sum_, cuda->AllocatePinned(sizeof(uint64_t)));
    return summing;
  }
  absl::StatusOr<Buffer> Map(int fd, int64_t size_bytes) const {
    return device_->MapRegion(fd, size_bytes, /*writable=*/false);
  }
  absl::StatusOr<uint64_t> Of(const Buffer& region, int64_t begin_bytes, int64_t size_bytes) {
    *sum_.data_as<uint64_t>() = 0;
    CudaStream* const stream = static_cast<CudaStream*>(stream_.get());
    RETURN_IF_ERROR(kernels_->Checksum(
        stream->handle(), DType::kFp32, region.data_as<char>() + begin_bytes,
        size_bytes / static_cast<int64_t>(sizeof(float)), sum_.data_as<uint64_t>()));
    stream->Synchronize();
    RETURN_IF_ERROR(static_cast<CudaRankDevice*>(device_)->cuda_device()->status());
    return *sum_.data_as<uint64_t>();
  }

 private:
  RankDevice* device_ = nullptr;
  std::unique_ptr<GpuKernels> kernels_;
  Buffer sum_;  // Pinned.
  std::unique_ptr<Stream> stream_;
};

}  // namespace

absl::StatusOr<UniqueFd> WatchedMemory::Create(const std::string& label, int64_t size_bytes) {
  ASSIGN_OR_RETURN(UniqueFd fd, memory_->Create(label, size_bytes));
  UniqueFd own(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (own.get() < 0) return ErrnoStatus(errno, label);
  absl::MutexLock lock(&mu_);
  regions_.insert_or_assign(label, Region{std::move(own), size_bytes});
  return fd;
}

absl::StatusOr<WatchedMemory::Checksums> WatchedMemory::All(RankDevice* device) const {
  ASSIGN_OR_RETURN(Summing summing, Summing::Create(device));
  Checksums sums;
  absl::MutexLock lock(&mu_);
  for (const auto& [label, region] : regions_) {
    ASSIGN_OR_RETURN(const Buffer mapped, summing.Map(region.fd.get(), region.size_bytes));
    ASSIGN_OR_RETURN(sums[label], summing.Of(mapped, 0, region.size_bytes));
  }
  return sums;
}

absl::StatusOr<WatchedMemory::Checksums> WatchedMemory::States(RankDevice* device,
                                                               int64_t step) const {
  ASSIGN_OR_RETURN(Summing summing, Summing::Create(device));
  Checksums sums;
  absl::MutexLock lock(&mu_);
  for (const auto& [label, region] : regions_) {
    if (!absl::EndsWith(label, "/state")) continue;
    ASSIGN_OR_RETURN(const Buffer mapped, summing.Map(region.fd.get(), region.size_bytes));
    // p v0 | p v1 | m v0 | m v1 | v v0 | v v1 | reduced
    const int64_t array_bytes = region.size_bytes / 7;
    for (int array = 0; array < 3; ++array) {
      ASSIGN_OR_RETURN(const uint64_t sum,
                       summing.Of(mapped, array_bytes * (2 * array + step % 2), array_bytes));
      sums[absl::StrCat(label, " ", array)] = sum;
    }
  }
  return sums;
}

}  // namespace gpu_check
}  // namespace tessera
