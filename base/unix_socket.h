// Sockets of the file system (AF_UNIX), which processes of one machine find by a path.
// Stateless and thread-safe.
#ifndef TESSERA_BASE_UNIX_SOCKET_H_
#define TESSERA_BASE_UNIX_SOCKET_H_

#include <sys/stat.h>
#include <sys/un.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {

// The address of `path`. Errors: InvalidArgument  the path is empty or too long.
absl::StatusOr<sockaddr_un> UnixSocketAddress(const std::string& path);

// connect(2). Zero, or the error's number.
int ConnectUnixSocket(int socket, const sockaddr_un& address);

// A socket of `type`, which may include SOCK_NONBLOCK, that listens at `path`; close-on-exec.
// It appears there at once with `mode`, listening: no client finds it half made, and the process's
// umask does not count. A socket on which nobody listens any more is replaced.
// Errors: InvalidArgument   the path is too long, or what is there is no socket;
//         AlreadyExists     a process listens there, however busy or on whatever type of socket;
//         NotFound, PermissionDenied  the folder is not there or not to be written, or the socket
//                           that is there may not be probed.
absl::StatusOr<UniqueFd> ListenUnixSocket(const std::string& path, int type, mode_t mode);

}  // namespace tessera

#endif  // TESSERA_BASE_UNIX_SOCKET_H_
