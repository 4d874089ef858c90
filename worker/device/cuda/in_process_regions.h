// Memory of a GPU that stays in one process, for drivers that cannot pass memory between processes:
// every caller with the same placeholder in that process gets the same memory.
//
//   keeper ── CreatePlaceholder ──► descriptor ──► MapPlaceholder in a trainer ───────────┐
//                                                  MapPlaceholder in its own executor ────┴► memory
//
// Another process that maps the placeholder gets memory of its own. What is first mapped is made,
// with undefined content; it is freed with the last of its mappings. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_IN_PROCESS_REGIONS_H_
#define TESSERA_WORKER_DEVICE_CUDA_IN_PROCESS_REGIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/device/buffer.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

// A descriptor that holds no memory of a device: a name for `size_bytes` BYTES of it, which nobody
// changes any more. `label` shows in /proc/PID/fd.
// Errors: InvalidArgument    size_bytes < 1
//         ResourceExhausted  no descriptor is left
absl::StatusOr<UniqueFd> CreatePlaceholder(const std::string& label, int64_t size_bytes);

// Whether that made it, in whichever process.
bool IsPlaceholder(int descriptor);

// Its memory in this process, of at least `size_bytes`: what the placeholder says of itself is only
// compared with that. `api` outlives it; the descriptor stays the caller's.
// Errors: InvalidArgument     it is not a placeholder, or one of less, or less of it is mapped
//                             already
//         ResourceExhausted   the device has no memory left: the message has what was wanted and
//                             what is free; or no descriptor
//         those of CudaDevice::Create
absl::StatusOr<Buffer> MapPlaceholder(CudaApi* api, int device, int descriptor, int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_IN_PROCESS_REGIONS_H_
