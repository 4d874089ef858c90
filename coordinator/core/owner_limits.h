// How much one owner may have of a coordinator, so that others have some, too. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_
#define TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_

#include <map>

#include "absl/status/status.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/events.h"

namespace tessera::coordinator {

// Whether there may be one more job, beside `jobs`.
// Errors: ResourceExhausted  names the owner, the limit, what there is, and what to do
absl::Status CheckLimits(const CoordinatorOptions& options, const std::map<JobId, Job>& jobs,
                         const CreateJobEvent& event);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_
