// The memory of a rank that its trainer has mapped: see job/job_memory.h. A plain value.
#ifndef TESSERA_CLIENT_SESSION_MAPPED_RANK_H_
#define TESSERA_CLIENT_SESSION_MAPPED_RANK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/session/slot_windows.h"
#include "shm/region.h"
#include "worker/device/mapped_parameters.h"
#include "worker/device/rank_device.h"

namespace tessera {

struct MappedRank {
  std::unique_ptr<RankDevice> device;  // Outlives what it has mapped.
  MappedParameters parameters;         // On the device, read-only.
  SlotWindows slot_windows;
  Mapping gradients;  // In host memory, whatever the device.
  Mapping control;
  // Of a rank on a GPU; else nothing.
  Buffer device_gradients;
  Buffer sum;  // Room for one of a parameter's gradients, for low precision.
  std::unique_ptr<RankKernels> kernels;
  // By which the executor learns when a gradient is complete; none: the trainer waits for that.
  std::vector<std::unique_ptr<SharedEvent>> gradient_events;
  uint32_t next_event = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_MAPPED_RANK_H_
