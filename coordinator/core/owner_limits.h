// Limits what one owner may use of a coordinator, so that enough is left for others. Copyable
// value; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_
#define TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/events.h"

namespace tessera::coordinator {

class OwnerLimits {
 public:
  // Whether `event` may add a job to `jobs`. If so, counts it as created.
  // Errors: ResourceExhausted  names the owner, the limit, the use so far, and what to do
  absl::Status Create(const CoordinatorOptions& options, const std::map<JobId, Job>& jobs,
                      const CreateJobEvent& event, absl::Time now);
  void TakeBackCreate() { created_.pop_back(); }  // The last Create could not be journalled.

 private:
  struct Created {
    std::string owner;
    int64_t bytes = 0;  // Of the model.
    absl::Time at;
  };
  // In the last minute, by owners that are not operators. Each job is written to disk while others
  // wait, so a job that is deleted at once counts too.
  std::deque<Created> created_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_
