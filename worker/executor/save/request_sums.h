// Whether all ranks ask for the same: without it each would go by a plan of its own.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_REQUEST_SUMS_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_REQUEST_SUMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/comm/communicator.h"

namespace tessera {

// What of a request must be the same, and its value or a checksum of it.
struct RequestPart {
  std::string name;  // "the path", for an error.
  uint64_t sum = 0;
};

// `parts`: the same names in the same order on every rank; `what` did the request ask for: "load".
// Collective; as thread-safe as the communicator.
// Errors: FailedPrecondition, agreed (agreed_error.h)  names two ranks and what differs;
// the communicator's.
absl::Status CompareRequestParts(absl::string_view what, const std::vector<RequestPart>& parts,
                                 Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_REQUEST_SUMS_H_
