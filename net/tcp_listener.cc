#include "net/tcp_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// While connections are refused. What a sweep costs grows with how many there are.
constexpr absl::Duration kBetweenSweeps = absl::Milliseconds(100);

size_t MaxConnections() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur / 2;
}

std::string ClientOf(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
    return inet_ntop(AF_INET, &v4, text, sizeof(text));
  }
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof(text));
  std::fill(v6.s6_addr + 8, v6.s6_addr + 16, 0);
  return absl::StrCat(inet_ntop(AF_INET6, &v6, text, sizeof(text)), "/64");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Bind(const ServerAddress& address,
                                                               absl::string_view text) {
  ASSIGN_OR_RETURN(TcpSockets sockets, ListenTcp(address, text));
  return absl::WrapUnique(new TcpListener(std::move(sockets), text));
}

TcpListener::TcpListener(TcpSockets sockets, absl::string_view text)
    : port_(sockets.port),
      loop_(absl::StrCat("port ", port_, " ('", text, "')"), std::move(sockets.sockets)) {}

void TcpListener::AddTo(grpc::ServerBuilder* builder,
                        std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server_ =
      builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::move(credentials));
}

absl::Status TcpListener::Serve() {
  return loop_.Start([this](UniqueFd connection) { return Take(std::move(connection)); });
}

absl::Status TcpListener::Take(UniqueFd connection) {
  struct stat info;
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  // An error: it has ended.
  if (fstat(connection.get(), &info) != 0 ||
      getpeername(connection.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0)
    return absl::OkStatus();
  // The number's last connection has ended.
  const auto last = connections_.find(connection.get());
  if (last != connections_.end()) Forget(last);
  const std::string client = ClientOf(peer);
  const auto num_of_client = [&] {
    const auto found = num_of_client_.find(client);
    return found == num_of_client_.end() ? 0 : found->second;
  };
  const size_t max = MaxConnections();
  const auto has_room = [&] { return connections_.size() + num_of_client() < max; };
  const absl::Time now = SteadyNow();
  if (connections_.size() >= sweeps_at_ || (!has_room() && now - swept_at_ > kBetweenSweeps)) {
    Sweep();
    swept_at_ = now;
    sweeps_at_ = 2 * connections_.size() + 64;
  }
  if (!has_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "client ", client, " gets no more connections: it has ", num_of_client(), ", and of ", max,
        " only ", max - std::min(max, connections_.size()), " are free"));
  }
  connections_[connection.get()] = {info.st_ino, client};
  ++num_of_client_[client];
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.Release();
  server_->HandleNewConnection(&parameters);
  return absl::OkStatus();
}

void TcpListener::Sweep() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto one = it++;
    struct stat info;
    if (fstat(one->first, &info) != 0 || info.st_ino != one->second.socket) Forget(one);
  }
}

void TcpListener::Forget(std::map<int, Connection>::iterator connection) {
  const auto of_client = num_of_client_.find(connection->second.client);
  if (--of_client->second == 0) num_of_client_.erase(of_client);
  connections_.erase(connection);
}

}  // namespace tessera
