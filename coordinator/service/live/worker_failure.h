// What a worker says went wrong with a session. Stateless; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

// Names the worker. InvalidArgument, ResourceExhausted and DataLoss as it says them; Unavailable
// where another try may help; anything else is the worker's own trouble: FailedPrecondition.
absl::Status WorkerFailure(const std::string& worker, const v1::LiveFailure& failure);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_
