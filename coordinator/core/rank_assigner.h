// Gives every rank of a job a device. Pure; thread-safe.
//
//   live workers: a (2 devices), b (2 devices)     rank 0 -> a:0   rank 1 -> a:1
//   world_size 3                                   rank 2 -> b:0
//
// Stable: a rank whose device is still there keeps it, whatever joins; only ranks without a device
// get a free one, in the order of worker ids and devices.
#ifndef TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_
#define TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/core/member_registry.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

using DeviceId = std::pair<WorkerId, int32_t>;

// Placements by rank, or nullopt where live workers have too few devices that are not `claimed` by
// other jobs. `previous` is where the ranks were: empty, or one for each rank.
std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const std::set<DeviceId>& claimed,
                                                      const std::vector<RankPlacement>& previous,
                                                      int32_t world_size);

// Devices of live workers that are not `claimed`.
int64_t CountFreeDevices(const MemberRegistry& members, const std::set<DeviceId>& claimed);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_
