// What runs a rank's executor in its trainer's process: see client/executor/host_executor.h.
#ifndef TESSERA_HOST_EXECUTOR_FUNCTION_H_
#define TESSERA_HOST_EXECUTOR_FUNCTION_H_

#include <functional>

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace tessera {

// Returns once the executor has ended and uses nothing of the rank any more; the socket's end has
// it end. Where a call of the machine's libraries never comes back, it cannot: then it calls
// `stuck`, once, and neither returns nor closes the socket until the process ends.
using ExecutorIsStuck = std::function<void(const absl::Status& why)>;
using HostExecutor = std::function<absl::Status(UniqueFd socket, const ExecutorIsStuck& stuck)>;

}  // namespace tessera

#endif  // TESSERA_HOST_EXECUTOR_FUNCTION_H_
