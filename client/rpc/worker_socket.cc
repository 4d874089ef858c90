#include "client/rpc/worker_socket.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// For an answer. A worker that is frozen gives none.
constexpr absl::Duration kPatience = absl::Seconds(10);

absl::Status CheckServerUser(int socket) {
  // Another user's process at this path would give memory that it can change. Root trusts any user.
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

absl::StatusOr<Packet> AskWorker(int socket, absl::string_view packet, absl::Time deadline) {
  // Without a wait, which would have no deadline: a full socket means that the worker is frozen.
  RETURN_IF_ERROR(SendPacket(socket, packet, {}, /*wait=*/false));
  pollfd answer = {socket, POLLIN, 0};
  while (true) {
    const absl::Duration left = std::max(deadline - SteadyNow(), absl::ZeroDuration());
    const int64_t left_ms = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
    const int ready = poll(&answer, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30)));
    if (ready > 0) return ReceivePacket(socket);
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (SteadyNow() >= deadline) return absl::DeadlineExceededError("the worker does not answer");
  }
}

absl::StatusOr<Packet> AskWorker(int socket, absl::string_view packet) {
  absl::StatusOr<Packet> answer = AskWorker(socket, packet, SteadyNow() + kPatience);
  if (!answer.ok()) return absl::UnavailableError(answer.status().message());
  return answer;
}

}  // namespace tessera
