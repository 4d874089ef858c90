// Gives every rank of a job a device. Pure; thread-safe.
//
//   live workers: a (2 devices), b (3 devices, one claimed), c (4 devices)
//   world_size 2      kOneWorker a:0 a:1     kSpread a:0 a:1        kOneWorkerFirst a:0 a:1
//   world_size 6      kOneWorker none        kSpread a:0 a:1 b:0 b:2 c:0 c:1
//                                            kOneWorkerFirst the same if a, b and c reach others
//   world_size 4, two a worker               kOneWorkerFirst a:0 a:1 b:0 b:2
//
// A worker can limit how many ranks of one job it holds, and never gets more than fit into its
// memory. A rank whose device still exists keeps it, no matter which workers join.
//
// On one worker: the worker that holds the ranks already, if it has room for all. Otherwise the one
// with the fewest free devices that are enough, which leaves the next job the most devices
// together; ties go by id.
#ifndef TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_
#define TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/member_registry.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

using DeviceId = std::pair<WorkerId, int32_t>;

// What jobs occupy on the workers.
struct Claims {
  std::set<DeviceId> devices;
  std::map<WorkerId, int64_t> bytes;  // Host memory.

  // Adds a job whose ranks are at `places`, in any order; of one that frees its devices, its memory.
  void Add(const JobSpec& spec, const std::vector<DeviceId>& places, const MemberRegistry& members,
           bool frees_devices = false);
};

enum class PlacementRule {
  kOneWorker,  // All ranks of a job on one worker: docs/adr/0007.
  kSpread,     // On any workers, whether or not their ranks reach each other.
  // On one worker if one has room; otherwise on as few as possible of those whose ranks reach
  // others. The ranks of a worker are consecutive.
  kOneWorkerFirst,
};

// What the placement of one job depends on.
struct PlacementRequest {
  int32_t world_size = 1;
  PlacementRule rule = PlacementRule::kOneWorkerFirst;
  // Not 0: exactly this many ranks on each of world_size / ranks_per_worker workers.
  int32_t ranks_per_worker = 0;
  HostMemory cpu_host_memory, gpu_host_memory;  // As JobSpec's.
  Claims claimed;                               // By other jobs.
  std::set<WorkerId> avoided;                   // Workers that failed to do their part.
  std::vector<RankPlacement> previous;  // Where the ranks were: empty, or one for each rank.
};

// Placements by rank; nullopt: live workers have too few free devices.
std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const PlacementRequest& request);

// For a job in which each group of `ranks_per_worker` ranks has all shards: where the ranks go once
// some groups are lost. Groups on `kept` stay. Another group returns to its worker if that has
// room; otherwise it goes to a worker that has no ranks of the job. Requires `previous` to have all
// ranks.
std::optional<std::vector<RankPlacement>> ReplaceGroups(const MemberRegistry& members,
                                                        const PlacementRequest& request,
                                                        const std::set<WorkerId>& kept);

// What a job that cannot be placed waits for, for display:
// "needs 4 devices on one worker; largest free: 3 on 'a'; 'b' is left out".
std::string DescribeShortage(const MemberRegistry& members, const PlacementRequest& request);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_
