// The few calls that a trainer makes before and beside training. Blocking; thread-safe.
#ifndef TESSERA_CLIENT_CPP_JOB_RPC_H_
#define TESSERA_CLIENT_CPP_JOB_RPC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "proto/worker.pb.h"

namespace tessera {

// Each tries again, with the same request id, while the server is away, until `deadline`; all
// return DeadlineExceeded then, with the address and the last cause. Other errors: see proto/, and
// OpenChannel of net/credentials.h.
absl::StatusOr<v1::Job> CreateJob(const DialOptions& coordinator,
                                  const v1::CreateJobRequest& request, absl::Time deadline);
absl::StatusOr<v1::Job> GetJob(const DialOptions& coordinator, const std::string& job_id,
                               absl::Time deadline);
absl::Status DeleteJob(const DialOptions& coordinator, const v1::DeleteJobRequest& request,
                       absl::Time deadline);
// Waits too while the job is not running yet or the worker has not heard of it; and, with
// `wait_if_attached`, while the rank is attached to another trainer.
absl::StatusOr<v1::AttachResponse> AttachToRank(const DialOptions& worker,
                                                const v1::AttachRequest& request,
                                                bool wait_if_attached, absl::Time deadline);

// For a request id: unique over processes and time.
std::string NewRequestId();

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_JOB_RPC_H_
