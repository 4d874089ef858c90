// Where the memory of a GPU's ranks lives, found out when the worker starts.
//
//   descriptors work without a context   kWithoutContext   the keeper owns it, and costs no GPU
//                                                          memory for a context of its own
//   only with one                        kWithContext      the keeper owns it, with a context
//   not at all                           kInTrainer        no process can map another's memory:
//                                                          each trainer has its own, and its
//                                                          executor in its process; the shards are
//                                                          in the host's memory, which the keeper
//                                                          owns
//   no device                            kNowhere
//
// Descriptors fail in sandboxes that know nothing of the driver's, and on devices without virtual
// memory management. So it is tried, not looked up.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KEEPER_MEMORY_H_
#define TESSERA_WORKER_DEVICE_CUDA_KEEPER_MEMORY_H_

#include <string>

#include "absl/status/status.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

enum class KeeperMemory { kWithoutContext, kWithContext, kInTrainer, kNowhere };

// What a probe found. A later fact counts only where the earlier ones are good.
struct DeviceMemoryFacts {
  absl::Status device;             // The driver, and that the device is there.
  bool memory_management = false;  // What the device says of itself.
  bool descriptors = false;
  absl::Status without_context;  // Of creating, exporting, importing and mapping a piece.
  absl::Status with_context;
};

struct KeeperMemoryChoice {
  KeeperMemory where = KeeperMemory::kNowhere;
  std::string reason;  // For the log.
};

// Pure.
KeeperMemoryChoice ChooseKeeperMemory(const DeviceMemoryFacts& facts);

// Tries it on the device, and gives everything back. Leaves no context current on this thread.
DeviceMemoryFacts ProbeDeviceMemory(CudaApi* api, int device);

// Both, and one line in the log.
KeeperMemoryChoice FindKeeperMemory(CudaApi* api, int device);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KEEPER_MEMORY_H_
