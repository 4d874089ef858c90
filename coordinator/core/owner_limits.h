// How much one owner may have of a coordinator, so that others have some, too. A copyable value;
// thread-compatible.
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
  // Whether there may be one more job, beside `jobs`; if so, it counts as created.
  // Errors: ResourceExhausted  names the owner, the limit, what there is, and what to do
  absl::Status Create(const CoordinatorOptions& options, const std::map<JobId, Job>& jobs,
                      const CreateJobEvent& event, absl::Time now);
  void TakeBackCreate() { created_.pop_back(); }  // Of the last Create: it could not be journalled.

 private:
  struct Created {
    std::string owner;
    int64_t bytes = 0;  // Of the model.
    absl::Time at;
  };
  // In the last minute, of owners that are not operators: each is written to disk while others
  // wait, so one that is deleted at once counts, too.
  std::deque<Created> created_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_OWNER_LIMITS_H_
