#include "net/listen_tcp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// A peer that takes no data for so long is gone. The kernel would wait for a quarter of an hour.
constexpr int kUserTimeoutMs = 10'000;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, absl::string_view what) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (code != 0) return absl::NotFoundError(absl::StrCat(what, ": ", gai_strerror(code)));
  return Addresses(found, freeaddrinfo);
}

// Whether this machine has no such address, or none of its family.
bool IsNotHere(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

int PortOf(const UniqueFd& socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  // The port is at one place in both families.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

// 0: it listens. Otherwise an error number.
int Listen(const addrinfo& address, int port, UniqueFd* socket) {
  *socket = UniqueFd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket->valid()) return errno;
  const int on = 1, off = 0;
  // A port whose connections have just ended is free.
  setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Connections inherit these.
  setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket->get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(int));
  setsockopt(socket->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_storage bound = {};
  memcpy(&bound, address.ai_addr, address.ai_addrlen);
  reinterpret_cast<sockaddr_in*>(&bound)->sin_port = htons(port);
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&bound), address.ai_addrlen) != 0 ||
      listen(socket->get(), SOMAXCONN) != 0)
    return errno;
  return 0;
}

absl::StatusOr<TcpSockets> ListenAtAll(const std::string& host, int port, absl::string_view what) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, what));
  TcpSockets listening;
  listening.port = port;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    UniqueFd socket;
    error = Listen(*each, listening.port, &socket);
    if (IsNotHere(error)) continue;
    if (error != 0) return ErrnoStatus(error, what);
    if (listening.port == 0) listening.port = PortOf(socket);
    listening.sockets.push_back(std::move(socket));
  }
  if (listening.sockets.empty()) return ErrnoStatus(error, what);
  return listening;
}

}  // namespace

absl::StatusOr<TcpSockets> ListenTcp(const ServerAddress& address, absl::string_view text) {
  const std::string what = absl::StrCat("listen on '", text, "'");
  if (address.host == "0.0.0.0") {
    auto both = ListenAtAll("::", address.port, what);
    if (both.ok()) return both;  // Otherwise this machine may have no IPv6.
  }
  return ListenAtAll(address.host, address.port, what);
}

absl::Status DiagnoseListenFailure(const ServerAddress& address, absl::string_view text) {
  RETURN_IF_ERROR(ListenTcp(address, text).status());
  return absl::UnavailableError(absl::StrCat("listen on '", text, "': it could not start there"));
}

}  // namespace tessera
