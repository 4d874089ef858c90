#include "worker/device/cuda/fake_cuda_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/device/cuda/cuda_error.h"

namespace tessera {
namespace {

constexpr char kName[] = "fake_cuda";

void* Pointer(CudaAddress address) { return reinterpret_cast<void*>(address); }

// Replaces any mapping there.
bool MapOver(CudaAddress address, int64_t size_bytes, int descriptor) {
  const int flags = MAP_FIXED | (descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  return mmap(Pointer(address), size_bytes, PROT_NONE, flags, descriptor, 0) != MAP_FAILED;
}

bool IsOurMemory(int descriptor) {
  char target[64];
  const ssize_t length = readlink(absl::StrCat("/proc/self/fd/", descriptor).c_str(), target, 63);
  return length > 0 &&
         absl::StartsWith(absl::string_view(target, length), absl::StrCat("/memfd:", kName));
}

}  // namespace

FakeCudaMemory::Physical::~Physical() {
  if (counted) owner->Give(size_bytes);
}

FakeCudaMemory::~FakeCudaMemory() {
  absl::MutexLock lock(&mu_);
  for (const auto& [address, reservation] : reservations_) {
    munmap(Pointer(address), reservation.size_bytes);
  }
}

bool FakeCudaMemory::Take(int64_t size_bytes) {
  int64_t used = used_bytes_;
  do {
    if (size_bytes > total_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + size_bytes));
  return true;
}

int FakeCudaMemory::Create(int64_t size_bytes, CudaMemHandle* handle) {
  if (!IsGranular(size_bytes)) return kCudaInvalidValue;
  if (!Take(size_bytes)) return kCudaOutOfMemory;
  auto physical = std::make_shared<Physical>();
  physical->owner = this;
  physical->size_bytes = size_bytes;
  physical->counted = true;
  physical->memory = UniqueFd(memfd_create(kName, MFD_CLOEXEC));
  if (!physical->memory.valid() || ftruncate(physical->memory.get(), size_bytes) != 0) {
    return kCudaOutOfMemory;
  }
  absl::MutexLock lock(&mu_);
  *handle = next_handle_++;
  handles_[*handle] = std::move(physical);
  return kCudaSuccess;
}

int FakeCudaMemory::Release(CudaMemHandle handle) {
  absl::MutexLock lock(&mu_);
  return handles_.erase(handle) == 1 ? kCudaSuccess : kCudaInvalidValue;
}

int FakeCudaMemory::Export(CudaMemHandle handle, UniqueFd* descriptor) {
  absl::MutexLock lock(&mu_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return kCudaInvalidValue;
  *descriptor = UniqueFd(fcntl(found->second->memory.get(), F_DUPFD_CLOEXEC, 0));
  return descriptor->valid() ? kCudaSuccess : kCudaOperatingSystem;
}

int FakeCudaMemory::Import(int descriptor, CudaMemHandle* handle) {
  struct stat info;
  if (!IsOurMemory(descriptor) || fstat(descriptor, &info) != 0) return kCudaInvalidValue;
  auto physical = std::make_shared<Physical>();
  physical->owner = this;
  physical->size_bytes = info.st_size;
  physical->memory = UniqueFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!physical->memory.valid()) return kCudaOperatingSystem;
  absl::MutexLock lock(&mu_);
  *handle = next_handle_++;
  handles_[*handle] = std::move(physical);
  return kCudaSuccess;
}

int FakeCudaMemory::Reserve(int64_t size_bytes, int64_t alignment_bytes, CudaAddress* address) {
  if (!IsGranular(size_bytes) || alignment_bytes > granularity_bytes_) return kCudaInvalidValue;
  // Room to align in; the rest is given back at once.
  const int64_t room = size_bytes + granularity_bytes_;
  void* data = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return kCudaOutOfMemory;
  const auto begin = reinterpret_cast<CudaAddress>(data);
  const CudaAddress aligned =
      (begin + granularity_bytes_ - 1) / granularity_bytes_ * granularity_bytes_;
  if (aligned > begin) munmap(data, aligned - begin);
  munmap(Pointer(aligned + size_bytes), begin + room - aligned - size_bytes);
  absl::MutexLock lock(&mu_);
  reservations_[aligned].size_bytes = size_bytes;
  *address = aligned;
  return kCudaSuccess;
}

int FakeCudaMemory::FreeAddress(CudaAddress address, int64_t size_bytes) {
  absl::MutexLock lock(&mu_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.size_bytes != size_bytes ||
      found->second.mapped != nullptr) {
    return kCudaInvalidValue;
  }
  munmap(Pointer(address), size_bytes);
  reservations_.erase(found);
  return kCudaSuccess;
}

int FakeCudaMemory::Map(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) {
  absl::MutexLock lock(&mu_);
  const auto reservation = reservations_.find(address);
  const auto physical = handles_.find(handle);
  if (reservation == reservations_.end() || physical == handles_.end() ||
      reservation->second.mapped != nullptr || !IsGranular(size_bytes) ||
      size_bytes > reservation->second.size_bytes || size_bytes > physical->second->size_bytes) {
    return kCudaInvalidValue;
  }
  if (!MapOver(address, size_bytes, physical->second->memory.get())) return kCudaOutOfMemory;
  reservation->second.mapped = physical->second;
  reservation->second.mapped_bytes = size_bytes;
  return kCudaSuccess;
}

int FakeCudaMemory::Unmap(CudaAddress address, int64_t size_bytes) {
  absl::MutexLock lock(&mu_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.mapped == nullptr ||
      found->second.mapped_bytes != size_bytes || !MapOver(address, size_bytes, -1)) {
    return kCudaInvalidValue;
  }
  found->second.mapped = nullptr;
  return kCudaSuccess;
}

int FakeCudaMemory::SetAccess(CudaAddress address, int64_t size_bytes, CudaAccess access) {
  absl::MutexLock lock(&mu_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.mapped == nullptr ||
      found->second.mapped_bytes != size_bytes) {
    return kCudaInvalidValue;
  }
  const int protection = access == CudaAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  return mprotect(Pointer(address), size_bytes, protection) == 0 ? kCudaSuccess : kCudaInvalidValue;
}

bool FakeCudaMemory::IsMapped(CudaAddress address, int64_t size_bytes) const {
  if (!IsGranular(size_bytes) || address % granularity_bytes_ != 0) return false;
  absl::MutexLock lock(&mu_);
  auto found = reservations_.upper_bound(address);
  if (found == reservations_.begin()) return false;
  --found;
  const int64_t offset = static_cast<int64_t>(address - found->first);
  return found->second.mapped != nullptr && offset + size_bytes <= found->second.mapped_bytes;
}

std::string FakeCudaMemory::Held() const {
  absl::MutexLock lock(&mu_);
  int mappings = 0;
  for (const auto& [address, reservation] : reservations_)
    mappings += reservation.mapped != nullptr;
  if (handles_.empty() && reservations_.empty() && used_bytes_ == 0) return "";
  return absl::StrCat("handles=", handles_.size(), " mappings=", mappings,
                      " reservations=", reservations_.size(), " bytes=", used_bytes_.load());
}

}  // namespace tessera
