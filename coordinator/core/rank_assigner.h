// Gives every rank of a job a device. Pure; thread-safe.
//
//   live workers: a (2 devices), b (3 devices, one claimed), c (4 devices)
//   world_size 2      kOneWorker a:0 a:1     kSpread a:0 a:1        kOneWorkerFirst a:0 a:1
//   world_size 6      kOneWorker none        kSpread a:0 a:1 b:0 b:2 c:0 c:1
//                                            kOneWorkerFirst the same if a, b and c reach others
//   world_size 4, two a worker               kOneWorkerFirst a:0 a:1 b:0 b:2
//
// A worker that says so holds no more than so many ranks of a job, whatever it has free, nor more
// than fit into its memory.
// Stable: a rank whose device is still there keeps it, whatever joins. On one worker: the one that
// holds the ranks already if it has room for all, else the one that the job fills best, so that the
// next job finds the most devices together; equal ones in the order of their ids.
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

// What jobs have of the workers.
struct Claims {
  std::set<DeviceId> devices;
  std::map<WorkerId, int64_t> bytes;  // Of the memory of their hosts.

  // What a job has whose ranks are there, in any order.
  void Add(const JobSpec& spec, const std::vector<DeviceId>& places, const MemberRegistry& members);
};

enum class PlacementRule {
  kOneWorker,  // All ranks of a job on one worker: docs/adr/0007.
  kSpread,     // On any workers, whether or not their ranks reach each other.
  // On one worker; where none has room, on as few as possible of those whose ranks reach others.
  // The ranks of a worker follow each other.
  kOneWorkerFirst,
};

// What the placement of one job depends on.
struct PlacementRequest {
  int32_t world_size = 1;
  PlacementRule rule = PlacementRule::kOneWorkerFirst;
  // Not 0: just so many ranks on each of world_size / ranks_per_worker workers.
  int32_t ranks_per_worker = 0;
  HostMemory processor_memory, gpu_host_memory;  // As JobSpec's.
  Claims claimed;                                // By other jobs.
  std::set<WorkerId> avoided;                    // Workers that do not do what they are asked.
  std::vector<RankPlacement> previous;  // Where the ranks were: empty, or one for each rank.
};

// Placements by rank, or nullopt where live workers have too few free devices.
std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const PlacementRequest& request);

// Of a job whose groups of `ranks_per_worker` ranks each have all shards, where the ranks go once
// some groups are gone: those on `kept` stay; another one goes back to its worker where that has
// room, else to one that has none of the job's ranks. Requires `previous` to have all ranks.
std::optional<std::vector<RankPlacement>> ReplaceGroups(const MemberRegistry& members,
                                                        const PlacementRequest& request,
                                                        const std::set<WorkerId>& kept);

// What a job that cannot be placed waits for, for a person:
// "needs 4 devices on one worker; largest free: 3 on 'a'; 'b' is left out".
std::string DescribeShortage(const MemberRegistry& members, const PlacementRequest& request);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RANK_ASSIGNER_H_
