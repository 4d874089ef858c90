// The memory that holds a rank's parameters, gradients and shards, and the kernels that work on it:
// host memory, or a GPU.
//
//   descriptor of the keeper's ──► MapRegion ──► addresses of the device
//   row of work ──► CreateKernels ──► RankKernels
//
// Outlives what it makes. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_RANK_DEVICE_H_
#define TESSERA_WORKER_DEVICE_RANK_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shm/device_name.h"
#include "shm/shared_event.h"
#include "worker/device/buffer.h"
#include "worker/device/rank_kernels.h"

namespace tessera {

class RankDevice {
 public:
  virtual ~RankDevice() = default;

  virtual absl::string_view name() const = 0;         // "host", "cuda:0"
  virtual int number() const { return kHostDevice; }  // As CUDA numbers it in this process.
  // Whether its memory is not host memory.
  virtual bool is_separate() const = 0;

  // Maps memory of the device, whose descriptor another process sent; the descriptor stays the
  // caller's. `size_bytes` must be there.
  // Errors: InvalidArgument     it is not such memory, or less
  //         FailedPrecondition  the system refuses the descriptor
  //         ResourceExhausted   no addresses are left
  virtual absl::StatusOr<Buffer> MapRegion(int descriptor, int64_t size_bytes, bool writable) = 0;

  // Memory of the device, of this process alone; undefined content.
  // Errors: ResourceExhausted  none is left
  virtual absl::StatusOr<Buffer> Allocate(int64_t size_bytes) = 0;

  // Errors: Unimplemented      this device has none
  //         ResourceExhausted  none is left
  virtual absl::StatusOr<std::unique_ptr<SharedEvent>> CreateSharedEvent() {
    return absl::UnimplementedError("events that processes share");
  }
  // Of whichever process, this one too. `name` is untrusted.
  // Errors: Unavailable         nobody has it (any more)
  //         FailedPrecondition  the same, or events of other processes cannot be opened here: none
  //                             ever was by this object
  virtual absl::StatusOr<std::unique_ptr<SharedEvent>> OpenSharedEvent(const SharedEventName&) {
    return absl::UnimplementedError("events that processes share");
  }

  // Streams that gather or reduce, by their names, go before others from now on: in a hybrid job,
  // whose all-reduces would be in their way. Before any stream is made.
  virtual void PutGathersFirst() {}

  // Makes copies between the device and this host memory asynchronous, until the returned object is
  // destroyed; the memory stays the caller's and must exist that long. Empty: they already are.
  // Errors: ResourceExhausted  so much cannot be pinned; copies are as right without
  //         AlreadyExists      some of it is pinned
  virtual absl::StatusOr<Buffer> Pin(void*, int64_t /*size_bytes*/) { return Buffer(); }

  // Waits until all that this process has launched on the device is done, by any of its
  // threads and libraries. Errors: those of the device
  virtual absl::Status Synchronize() { return absl::OkStatus(); }

  struct KernelOptions {
    // The rank's shards and optimizer state are in host memory, and not on the device.
    bool state_on_host = false;
    int64_t max_count = 1;                      // ELEMENTS, of what is measured or updated at once.
    absl::string_view stream = "rank-kernels";  // Its name; see PutGathersFirst.
  };
  // Errors: ResourceExhausted  the device has no memory or stream left
  virtual absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(
      const KernelOptions& options) = 0;
};

// The host or a GPU: by its UUID, where the name has one, whatever its number is here.
// Errors: NotFound, Unimplemented  no driver, this program was built without CUDA, or it
//                                  does not see that GPU: the message has its UUID and number
//         FailedPrecondition       the driver is too old
using MakeRankDevice =
    std::function<absl::StatusOr<std::unique_ptr<RankDevice>>(const DeviceName& device)>;

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_RANK_DEVICE_H_
