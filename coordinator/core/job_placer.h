// Decides where a job's ranks go in its next epoch, which depends on which workers still hold its
// shards. It is a view of the coordinator's state, which must outlive it and must not change while
// it is used. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_JOB_PLACER_H_
#define TESSERA_COORDINATOR_CORE_JOB_PLACER_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/job.h"
#include "coordinator/core/rank_assigner.h"

namespace tessera::coordinator {

// "worker 'a'", or "workers 'a', 'b'".
std::string DescribeWorkers(const JobStatus& status);

class JobPlacer {
 public:
  explicit JobPlacer(const CoordinatorState* state) : state_(*state) {}

  // Where the ranks go in the next epoch; nullopt: nowhere yet. The ranks of a bound job stay with
  // their shards, or go where other ranks can copy these shards to.
  std::optional<std::vector<RankPlacement>> Place(const JobId& id, const Job& job) const;
  // The jobs that use the devices of a completed one now: "jobs 'a', 'b'"; empty: they are free.
  std::string WhoHasDevices(const JobId& id, const Job& job) const;
  // What a job without a place waits for, for display.
  std::string WhyWaiting(const JobId& id, const Job& job) const;
  // For a bound job: the workers that answer and have not restarted since they got their ranks,
  // without those that the job avoids.
  std::set<WorkerId> LiveWorkers(const JobId& id, const Job& job) const;
  // For a bound job: the workers that are not known to hold their ranks' shards.
  std::set<WorkerId> UnconfirmedWorkers(const JobId& id, const Job& job) const;
  // The workers that have lost their memory of the job: they restarted, or reported it.
  std::set<WorkerId> EmptyWorkers(const JobId& id, const Job& job) const;
  // Whether no worker holds some of the job's shards any more.
  bool MemoryIsGone(const JobId& id, const Job& job) const;

 private:
  PlacementRequest RequestFor(const JobId& id, const Job& job) const;

  const CoordinatorState& state_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_PLACER_H_
