// Where a job's ranks go in its next epoch, which depends on who still holds its shards. A view of
// the coordinator's state, which outlives it and does not change meanwhile. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_JOB_PLACER_H_
#define TESSERA_COORDINATOR_CORE_JOB_PLACER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/epoch_runtime.h"
#include "coordinator/core/orphans.h"
#include "coordinator/core/rank_assigner.h"

namespace tessera::coordinator {

// "worker 'a'", or "workers 'a', 'b'".
std::string DescribeWorkers(const JobStatus& status);

class JobPlacer {
 public:
  JobPlacer(const CoordinatorOptions* options, const DurableState* state,
            const std::map<JobId, EpochRuntime>* runtimes,
            const std::map<JobId, AvoidedWorkers>* avoided, const Orphans* orphans)
      : options_(options),
        state_(state),
        runtimes_(runtimes),
        avoided_(avoided),
        orphans_(orphans) {}

  // Where the ranks go in the next epoch, or nullopt: nowhere yet. Ranks of a job that is bound go
  // back to where their shards are, or are, or can be given to them.
  std::optional<std::vector<RankPlacement>> Place(const JobId& id, const Job& job) const;
  // What a job waits for that has no place, for a person.
  std::string WhyWaiting(const JobId& id, const Job& job) const;
  // Of a job that is bound: the workers that answer, and have not started again since they got
  // their ranks.
  std::set<WorkerId> LiveWorkers(const JobId& id, const Job& job) const;
  // Of a job that is bound: the workers of which nobody knows that they hold their ranks' shards.
  std::set<WorkerId> UnconfirmedWorkers(const JobId& id, const Job& job) const;
  // The workers whose memory of the job is gone: they started again, or have said so.
  std::set<WorkerId> EmptyWorkers(const JobId& id, const Job& job) const;
  // Whether some of the job's shards are in nobody's memory any more.
  bool MemoryIsGone(const JobId& id, const Job& job) const;

 private:
  PlacementRequest RequestFor(const JobId& id, const Job& job) const;
  const EpochRuntime* FindRuntime(const JobId& id, const Job& job) const;  // Of the job's epoch.

  const CoordinatorOptions* const options_;
  const DurableState* const state_;
  const std::map<JobId, EpochRuntime>* const runtimes_;
  const std::map<JobId, AvoidedWorkers>* const avoided_;
  const Orphans* const orphans_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_PLACER_H_
