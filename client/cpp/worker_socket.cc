#include "client/cpp/worker_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// For an answer. A worker that is frozen gives none.
constexpr int kPatienceSeconds = 10;

absl::Status CheckServerUser(int socket) {
  return geteuid() == 0 ? absl::OkStatus() : CheckPeerUser(socket);
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectToWorker(const std::string& descriptor_socket) {
  absl::StatusOr<UniqueFd> socket = ConnectPacketSocket(descriptor_socket);
  if (socket.ok()) {
    const absl::Status same_user = CheckServerUser(socket->get());
    if (!same_user.ok()) return absl::FailedPreconditionError(same_user.message());
    return socket;
  }
  if (absl::IsResourceExhausted(socket.status())) return socket.status();
  return absl::FailedPreconditionError(
      absl::StrCat("not on this host, or another user's: ", socket.status().message()));
}

absl::StatusOr<Packet> AskWorker(int socket, absl::string_view text) {
  const timeval patience = {kPatienceSeconds, 0};
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  RETURN_IF_ERROR(SendPacket(socket, text, {}, /*wait=*/false));
  absl::StatusOr<Packet> packet = ReceivePacket(socket);
  if (!packet.ok()) return absl::UnavailableError(packet.status().message());
  return packet;
}

}  // namespace tessera
