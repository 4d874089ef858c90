// Where a keeper gets the memory of its ranks' device from: a GPU's, as descriptors that hold it.
//
//   keeper ── Create ──► descriptor ──(Unix socket)──► RankDevice::MapRegion in executor, trainer
//
// The memory goes when the last descriptor and mapping of all processes have. Where the driver
// passes no memory between processes, a descriptor only names it: each process that maps it has
// memory of its own, and an executor must be in its trainer's process. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_DEVICE_MEMORY_H_
#define TESSERA_WORKER_DEVICE_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "shm/device_name.h"

namespace tessera {

// A piece of memory that this process only reads. Thread-safe.
class MemoryReader {
 public:
  virtual ~MemoryReader() = default;
  // Bytes [offset_bytes, offset_bytes + size_bytes), which must exist, into host memory.
  // Errors: Unavailable, Internal  those of the device or the system
  virtual absl::Status Read(void* to, int64_t offset_bytes, int64_t size_bytes) = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual DeviceName device() const = 0;  // With its UUID, for processes that count otherwise.

  // Empty: processes share what Create gives. Else why they cannot, so that what it gives are
  // names.
  virtual std::string why_not_shared() const { return ""; }

  // At least `size_bytes` of undefined content.
  // Errors: InvalidArgument    size_bytes < 1, or too large for any machine
  //         ResourceExhausted  the device has no memory left: the message has what was wanted
  //                            and what is free
  //         FailedPrecondition, Unavailable, Internal  the system or the device refuses
  virtual absl::StatusOr<UniqueFd> Create(const std::string& label, int64_t size_bytes) = 0;

  // For a reader outside the ranks of memory that Create returned, of this size. May take room on
  // the device as long as the reader exists. The descriptor stays the caller's; this outlives the
  // reader.
  // Errors: as RankDevice::MapRegion; Unimplemented  processes share nothing
  virtual absl::StatusOr<std::unique_ptr<MemoryReader>> OpenReader(int descriptor,
                                                                   int64_t size_bytes) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_DEVICE_MEMORY_H_
