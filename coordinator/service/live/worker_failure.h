// Converts what a worker reports as wrong with a session. Stateless; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

// Names the worker. InvalidArgument, ResourceExhausted, DataLoss and Cancelled stay; Unavailable
// where a retry may help. Anything else is the worker's own problem: FailedPrecondition.
absl::Status WorkerFailure(const std::string& worker, const v1::LiveFailure& failure);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_FAILURE_H_
