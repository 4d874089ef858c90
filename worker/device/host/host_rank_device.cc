#include "worker/device/host/host_rank_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "shm/region.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {

absl::StatusOr<Buffer> HostRankDevice::MapRegion(int descriptor, int64_t size_bytes,
                                                 bool writable) {
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::CreateWhole(descriptor, writable ? Access::kReadWrite
                                                                              : Access::kReadOnly));
  // Whatever the sender said: less would fault where it is read.
  if (mapping.size_bytes() < size_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("region has ", mapping.size_bytes(), " bytes of ", size_bytes));
  }
  std::byte* data = mapping.data();
  const int64_t mapped_bytes = mapping.size_bytes();
  return Buffer(data, mapped_bytes,
                [mapping = std::move(mapping)]() mutable { mapping = Mapping(); });
}

absl::StatusOr<Buffer> HostRankDevice::Allocate(int64_t size_bytes) {
  return HostRankKernels().AllocateOnHost(size_bytes);
}

absl::StatusOr<std::unique_ptr<RankKernels>> HostRankDevice::CreateKernels(const KernelOptions&) {
  return std::make_unique<HostRankKernels>();
}

absl::StatusOr<std::unique_ptr<RankDevice>> MakeHostRankDevice(const DeviceName& device) {
  if (device.is_host()) return std::make_unique<HostRankDevice>();
  return absl::UnimplementedError(absl::StrCat("this program has no GPU ", ToText(device)));
}

}  // namespace tessera
