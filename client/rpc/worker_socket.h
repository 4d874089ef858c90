// The descriptor socket of a worker on this host, as trainers and clients that map a job's state
// use it. Stateless.
#ifndef TESSERA_CLIENT_RPC_WORKER_SOCKET_H_
#define TESSERA_CLIENT_RPC_WORKER_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "shm/fd_passing.h"

namespace tessera {

// Errors: FailedPrecondition  it is not on this host, or another user's
//         ResourceExhausted   no descriptors
absl::StatusOr<UniqueFd> ConnectToWorker(const std::string& descriptor_socket);

// Returns its answer.
// Errors: DeadlineExceeded  no answer in time; Unavailable  it is gone.
absl::StatusOr<Packet> AskWorker(int socket, absl::string_view packet, absl::Time deadline);
// The same within 10 s, and Unavailable where it says nothing.
absl::StatusOr<Packet> AskWorker(int socket, absl::string_view packet);

}  // namespace tessera

#endif  // TESSERA_CLIENT_RPC_WORKER_SOCKET_H_
