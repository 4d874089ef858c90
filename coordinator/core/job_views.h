// What the coordinator says about a job, for replies, watches and commands. Reads the state only.
// Thread-compatible, as the state.
#ifndef TESSERA_COORDINATOR_CORE_JOB_VIEWS_H_
#define TESSERA_COORDINATOR_CORE_JOB_VIEWS_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/core/cluster_event.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"

namespace tessera::coordinator {

JobView ViewJob(const CoordinatorState& state, const JobId& id, const Job& job);
// Why the job is in its state, and what it waits for.
std::string StateReason(const CoordinatorState& state, const JobId& id, const Job& job);
// What happened to the job, with the severity of its kind.
ClusterEvent EventOf(EventKind kind, const JobId& id, const Job& job, std::string text);
ClusterEvent EventOf(EventKind kind, const JobView& job, std::string text);
// NotFound, which names the job.
absl::Status NoSuchJob(const JobId& job);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_VIEWS_H_
