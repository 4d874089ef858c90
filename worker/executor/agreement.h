// One outcome for all ranks. Collective; as thread-safe as the communicator.
#ifndef TESSERA_WORKER_EXECUTOR_AGREEMENT_H_
#define TESSERA_WORKER_EXECUTOR_AGREEMENT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/comm/communicator.h"

namespace tessera {

// Makes `status` the same on every rank: OK if all are, else the lowest failing rank's, with
// "<what> on rank R: ". Errors: the communicator's; `status` means nothing then.
absl::Status AgreeOn(absl::string_view what, absl::Status* status, Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_AGREEMENT_H_
