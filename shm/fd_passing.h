// Packets with file descriptors over Unix sockets (SOCK_SEQPACKET, SCM_RIGHTS).
// Stateless; the caller owns the sockets. A received packet owns its descriptors.
#ifndef TESSERA_SHM_FD_PASSING_H_
#define TESSERA_SHM_FD_PASSING_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace tessera {

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

inline constexpr size_t kMaxPacketBytes = 64 << 10;
inline constexpr size_t kMaxPacketFds = 253;  // SCM_MAX_FD of the kernel.

// Errors: InvalidArgument too large; Unavailable the peer is gone; ResourceExhausted its queue is
// full and `wait` is false.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds = {},
                        bool wait = true);
// Blocks. Errors: Unavailable the peer closed (an orderly end too); InvalidArgument truncated.
absl::StatusOr<Packet> ReceivePacket(int socket);

// The same where none are to come, from anybody: this process never holds the peer's descriptors,
// which may be of files whose closing hangs. Errors: InvalidArgument  some came, too.
absl::StatusOr<std::string> ReceiveBytes(int socket);

// A connected pair, close-on-exec.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> CreatePacketSocketPair();

// Listens at `path`, a file of this mode: see ListenUnixSocket.
absl::StatusOr<UniqueFd> ListenPacketSocket(const std::string& path, mode_t mode = 0600);
// Does not wait. Errors: Unavailable nobody listens at `path`, or too many wait there; NotFound no
// such file.
absl::StatusOr<UniqueFd> ConnectPacketSocket(const std::string& path);

// The peer of the connection, as the kernel says.
struct PacketPeer {
  int pid = 0;  // As its number is in this process's space of process ids.
  uid_t uid = 0;
};
absl::StatusOr<PacketPeer> PeerOf(int socket);
// Whether it runs as this process's user, or as root.
bool IsOwnUser(const PacketPeer& peer);
// Errors: PermissionDenied  the peer runs as another user (root may always).
absl::Status CheckPeerUser(int socket);

}  // namespace tessera

#endif  // TESSERA_SHM_FD_PASSING_H_
