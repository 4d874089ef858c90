// The descriptor socket of a worker on this host, as who maps a job's state uses it. Stateless.
#ifndef TESSERA_CLIENT_CPP_WORKER_SOCKET_H_
#define TESSERA_CLIENT_CPP_WORKER_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "worker/memory/fd_passing.h"

namespace tessera {

// Errors: FailedPrecondition  it is not on this host, or another user's
//         ResourceExhausted   no descriptors
absl::StatusOr<UniqueFd> ConnectToWorker(const std::string& descriptor_socket);

// What it answers. Errors: Unavailable  nothing, in time.
absl::StatusOr<Packet> AskWorker(int socket, absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_WORKER_SOCKET_H_
