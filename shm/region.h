// A piece of memory behind a file descriptor (memfd), and a mapping of it.
//
// A SharedRegion owns one descriptor; any process that holds it (see fd_passing.h) maps the same
// pages with Mapping::Create. The pages live until the last descriptor and mapping are gone, so
// they outlive an executor, a trainer and, if a vault has their descriptors, the worker's daemon; no
// name is left anywhere.
// Both classes are move-only and thread-compatible.
#ifndef TESSERA_SHM_REGION_H_
#define TESSERA_SHM_REGION_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/page_bytes.h"
#include "base/unique_fd.h"

namespace tessera {

class SharedRegion {
 public:
  // `label` shows in /proc/PID/maps. The region is zero-filled and its size is sealed.
  // Errors: InvalidArgument size_bytes < 1; ResourceExhausted no descriptor or memory is left.
  static absl::StatusOr<SharedRegion> Create(absl::string_view label, int64_t size_bytes);
  // One that Create made, perhaps of another process.
  // Errors: InvalidArgument  it is of another size, or its size is not sealed
  static absl::StatusOr<SharedRegion> Adopt(absl::string_view label, UniqueFd fd,
                                            int64_t size_bytes);

  int fd() const { return fd_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  // Leaves a region that is nothing.
  UniqueFd TakeFd() && { return std::move(fd_); }

 private:
  SharedRegion(UniqueFd fd, int64_t size_bytes) : fd_(std::move(fd)), size_bytes_(size_bytes) {}

  UniqueFd fd_;
  int64_t size_bytes_ = 0;
};

enum class Access { kReadOnly, kReadWrite };

class Mapping {
 public:
  // Maps [offset_bytes, offset_bytes + size_bytes) of `fd`; the descriptor may be closed after.
  // Errors: InvalidArgument  the range is not inside the file or not page-aligned.
  static absl::StatusOr<Mapping> Create(int fd, int64_t offset_bytes, int64_t size_bytes,
                                        Access access);
  // The whole file.
  static absl::StatusOr<Mapping> CreateWhole(int fd, Access access);

  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  bool valid() const { return data_ != nullptr; }

  // Touches every page so that no later access faults. Read-write mappings only.
  void Populate() const;

 private:
  Mapping(std::byte* data, int64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// Has the pages of this part of a region be there, zeroes where nothing was written. Asks the
// machine how much it has left now and then: beyond that the kernel would kill somebody.
// Errors: ResourceExhausted  there is not so much memory
absl::Status TakeMemory(int fd, int64_t offset_bytes, int64_t size_bytes);
// Gives these pages back. They are read as zeroes then.
void GiveMemoryBack(int fd, int64_t offset_bytes, int64_t size_bytes);

// Gives the memory of the whole pages of [data, data + size_bytes) back, for all mappings; they
// read as zeroes then. Of a shared, writable mapping.
void DiscardPages(std::byte* data, int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_SHM_REGION_H_
