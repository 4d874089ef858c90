#include "shm/fd_passing.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unix_socket.h"

namespace tessera {

absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds, bool wait) {
  if (bytes.empty() || bytes.size() > kMaxPacketBytes || fds.size() > kMaxPacketFds) {
    return absl::InvalidArgumentError(
        absl::StrCat("packet of ", bytes.size(), " bytes and ", fds.size(), " descriptors"));
  }
  iovec io = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent;
  do {
    // MSG_NOSIGNAL: a peer that is gone is an error here, not a SIGPIPE.
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (errno == EAGAIN) return absl::ResourceExhaustedError("packet socket: the queue is full");
    return ErrnoStatus(errno, "send a packet");
  }
  return absl::OkStatus();
}

absl::StatusOr<Packet> ReceivePacket(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  iovec io = {packet.bytes.data(), packet.bytes.size()};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    // Close-on-exec from the start: another thread may fork an executor right now.
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return ErrnoStatus(errno, "receive a packet");
  // Before any check: what arrived has an owner from here on, so each error below closes it.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  // An empty packet looks like the end, so SendPacket refuses one.
  if (received == 0) return absl::UnavailableError("packet socket: the peer closed it");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("packet socket: a packet was truncated");
  }
  packet.bytes.resize(received);
  return packet;
}

absl::StatusOr<std::string> ReceiveBytes(int socket) {
  std::string bytes(kMaxPacketBytes, 0);
  iovec io = {bytes.data(), bytes.size()};
  msghdr message = {};
  // No room for descriptors: the kernel drops any that a peer sends and sets MSG_CTRUNC, so that
  // strangers cannot fill this process's table.
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  ssize_t received;
  do {
    received = recvmsg(socket, &message, 0);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return ErrnoStatus(errno, "receive a packet");
  if (received == 0) return absl::UnavailableError("packet socket: the peer closed it");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return absl::InvalidArgumentError("packet socket: too long, or with descriptors");
  bytes.resize(received);
  return bytes;
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> CreatePacketSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::StatusOr<UniqueFd> ListenPacketSocket(const std::string& path, mode_t mode) {
  return ListenUnixSocket(path, SOCK_SEQPACKET, mode);
}

absl::StatusOr<UniqueFd> ConnectPacketSocket(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixSocketAddress(path));
  // Non-blocking for the connect alone, which would wait for a full backlog without a deadline.
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (const int error = ConnectUnixSocket(fd.get(), address); error != 0) {
    if (error == EAGAIN) {
      return absl::UnavailableError(
          absl::StrCat("connect to ", path, ": as many wait there as may"));
    }
    return ErrnoStatus(error, absl::StrCat("connect to ", path));
  }
  if (fcntl(fd.get(), F_SETFL, 0) != 0) return ErrnoStatus(errno, "fcntl");
  return fd;
}

absl::StatusOr<PacketPeer> PeerOf(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return ErrnoStatus(errno, "SO_PEERCRED");
  return PacketPeer{peer.pid, peer.uid};
}

bool IsOwnUser(const PacketPeer& peer) { return peer.uid == geteuid() || peer.uid == 0; }

absl::Status CheckPeerUser(int socket) {
  ASSIGN_OR_RETURN(const PacketPeer peer, PeerOf(socket));
  if (IsOwnUser(peer)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("a process of user ", peer.uid, " may not use the socket of user ", geteuid()));
}

}  // namespace tessera
