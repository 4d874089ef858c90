// The parameters of a rank, mapped into this process: its executor's, or its trainer's. A plain
// value; the device outlives it, and addresses stay when it is moved.
#ifndef TESSERA_WORKER_DEVICE_MAPPED_PARAMETERS_H_
#define TESSERA_WORKER_DEVICE_MAPPED_PARAMETERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "shm/parameter_plan.h"
#include "worker/device/rank_device.h"

namespace tessera {

struct MappedParameters {
  ParameterPlan plan;
  Buffer region;
  std::vector<Buffer> slots;  // By unit: its slot, at an address of its own; empty: it has none.
  std::vector<UnitParameters> units;

  // `slots`: a descriptor each, as many as the plan has. They stay the caller's.
  // Errors: those of RankDevice::MapRegion, with what was mapped
  static absl::StatusOr<MappedParameters> Map(ParameterPlan plan, const ModelLayout& layout,
                                              const JobMemory& memory, Rank rank,
                                              RankDevice* device, const UniqueFd& region,
                                              absl::Span<const UniqueFd> slots, bool writable);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_MAPPED_PARAMETERS_H_
