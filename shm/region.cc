#include "shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/machine_memory.h"
#include "base/status_macros.h"
#include "shm/populate_pages.h"

namespace tessera {

absl::StatusOr<SharedRegion> SharedRegion::Create(absl::string_view label, int64_t size_bytes) {
  if (size_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("region ", label, ": size ", size_bytes));
  }
  const std::string name = absl::StrCat("tessera:", label);
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("memfd_create ", name));
  // Another user who is given it for reading cannot open it for writing.
  if (fchmod(fd.get(), 0600) != 0) return ErrnoStatus(errno, absl::StrCat("chmod ", name));
  // Takes no memory yet: pages come with the first write, or with TakeMemory.
  if (ftruncate(fd.get(), size_bytes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("size ", name, " to ", size_bytes, " bytes"));
  }
  // A region that shrank under a mapping would be a SIGBUS in another process.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, absl::StrCat("seal ", name));
  }
  return SharedRegion(std::move(fd), size_bytes);
}

absl::StatusOr<SharedRegion> SharedRegion::Adopt(absl::string_view label, UniqueFd fd,
                                                 int64_t size_bytes) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", label));
  // Without the seals another process could shrink it under this one's mapping.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (info.st_size != size_bytes || seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(absl::StrCat(
        "region ", label, ": ", info.st_size, " bytes", seals < 0 ? "" : " and seals ",
        seals < 0 ? "" : absl::StrCat(seals), " where ", size_bytes, " sealed bytes should be"));
  }
  return SharedRegion(std::move(fd), size_bytes);
}

absl::StatusOr<Mapping> Mapping::Create(int fd, int64_t offset_bytes, int64_t size_bytes,
                                        Access access) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat a shared region");
  // Written so that no sum can overflow.
  if (offset_bytes < 0 || size_bytes < 1 || offset_bytes > info.st_size ||
      size_bytes > info.st_size - offset_bytes || offset_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("mapping [", offset_bytes, ", +", size_bytes,
                                                   ") of a region of ", info.st_size, " bytes"));
  }
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, offset_bytes);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map a shared region");
  return Mapping(static_cast<std::byte*>(data), size_bytes);
}

absl::StatusOr<Mapping> Mapping::CreateWhole(int fd, Access access) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat a shared region");
  return Create(fd, 0, info.st_size, access);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) munmap(data_, size_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void Mapping::Populate() const { PopulatePages(data_, size_bytes_); }

namespace {

// Writes to each page as it is, so that the file knows it as data. Sets errno where it cannot.
bool TouchPages(int fd, int64_t offset_bytes, int64_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  void* const pages =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset_bytes);
  if (pages == MAP_FAILED) return false;
  const bool touched = madvise(pages, size_bytes, MADV_POPULATE_WRITE) == 0;
  const int error = errno;
  munmap(pages, size_bytes);
  errno = error;
  if (touched || error != EINVAL) return touched;
#endif
  return fallocate(fd, 0, offset_bytes, size_bytes) == 0;  // Of older kernels.
}

}  // namespace

absl::Status TakeMemory(int fd, int64_t offset_bytes, int64_t size_bytes) {
  constexpr int64_t kBytesAtOnce = int64_t{64} << 20;
  const int64_t end = offset_bytes + size_bytes;
  while (offset_bytes < end) {
    // What is data already is skipped.
    const int64_t hole = lseek(fd, offset_bytes, SEEK_HOLE);  // None: the end of the file.
    if (hole > offset_bytes) {
      offset_bytes = hole;
      continue;
    }
    const int64_t piece = std::min(kBytesAtOnce, end - offset_bytes);
    // And a piece more, since others take theirs meanwhile.
    // Asked before the pages are touched: with no memory left the touch ends in the OOM killer, not
    // in an error.
    if (AvailableMemoryBytes() < end - offset_bytes + piece) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the node has no memory left for ", end - offset_bytes, " of ", size_bytes, " bytes"));
    }
    if (TouchPages(fd, offset_bytes, piece)) {
      offset_bytes += piece;
    } else if (errno != EINTR) {
      const int error = errno == ENOSPC || errno == EFAULT ? ENOMEM : errno;
      return ErrnoStatus(error, absl::StrCat("take ", piece, " bytes of memory"));
    }
  }
  return absl::OkStatus();
}

void GiveMemoryBack(int fd, int64_t offset_bytes, int64_t size_bytes) {
  // If this fails, memory stays in use. Nothing else depends on it.
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_bytes, size_bytes);
}

void DiscardPages(std::byte* data, int64_t size_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t end = (address + size_bytes) / kPageBytes * kPageBytes;
  if (begin >= end) return;
  // Where it fails, the memory is merely not given back.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE);
}

}  // namespace tessera
