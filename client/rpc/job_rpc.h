// The few calls that a trainer makes before and during training. Blocking; thread-safe. Calls to a
// worker go over its descriptor socket (proto/local.proto).
#ifndef TESSERA_CLIENT_RPC_JOB_RPC_H_
#define TESSERA_CLIENT_RPC_JOB_RPC_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "proto/local.pb.h"

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

// A rank that a trainer has, for as long as the lease is open.
struct AttachedRank {
  UniqueFd lease;
  std::vector<UniqueFd> fds;  // As GivenRank.
  v1::AttachResponse response;
};
// `worker_address`: the path of a Unix socket. Waits too while the worker is away, the job is not
// running yet or the worker has not heard of it; and, with `wait_if_attached`, while the rank is
// attached to another trainer.
// Errors: InvalidArgument  an address that is not a Unix socket's
//         others: see AttachRequest in proto/local.proto
absl::StatusOr<AttachedRank> AttachToRank(const std::string& worker_address,
                                          const v1::AttachRequest& request, bool wait_if_attached,
                                          absl::Time deadline);

// For a request id: unique over processes and time.
std::string NewRequestId();

}  // namespace tessera

#endif  // TESSERA_CLIENT_RPC_JOB_RPC_H_
