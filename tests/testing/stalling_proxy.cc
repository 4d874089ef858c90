#include "tests/testing/stalling_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/status_macros.h"

namespace tessera::testing_support {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Appends what is there. False: there is nothing more to come.
bool Receive(int fd, std::string* bytes) {
  const size_t before = bytes->size();
  bytes->resize(before + kPieceBytes);
  const ssize_t got = recv(fd, bytes->data() + before, kPieceBytes, MSG_DONTWAIT);
  const bool is_later = got < 0 && (errno == EAGAIN || errno == EINTR);
  bytes->resize(before + std::max<ssize_t>(got, 0));
  return got > 0 || is_later;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StallingProxy>> StallingProxy::Start(int port, Direction direction,
                                                                    int64_t bytes) {
  std::unique_ptr<StallingProxy> proxy(new StallingProxy(direction, bytes));
  RETURN_IF_ERROR(proxy->Open(port));
  return proxy;
}

absl::Status StallingProxy::Open(int port) {
  server_port_ = port;
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (!wake_.valid() || !listener_.valid() ||
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0 ||
      getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "listen on 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

StallingProxy::~StallingProxy() {
  stopping_.store(true);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void StallingProxy::Release() {
  released_.store(true);
  Wake();
}

void StallingProxy::Wake() {
  if (wake_.valid()) (void)eventfd_write(wake_.get(), 1);
}

int64_t StallingProxy::Sendable(Direction direction, const std::string& bytes) {
  const auto all = static_cast<int64_t>(bytes.size());
  if (direction != direction_ || released_.load()) return all;
  if (all > bytes_left_) has_stalled_.store(true);
  return std::min(all, bytes_left_);
}

void StallingProxy::Send(Direction direction, int fd, std::string* bytes) {
  const int64_t count = Sendable(direction, *bytes);
  if (count == 0) return;
  const ssize_t sent = send(fd, bytes->data(), count, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0) return;  // That the other side is gone shows where it is read from.
  bytes->erase(0, sent);
  if (direction == direction_) bytes_left_ = std::max<int64_t>(bytes_left_ - sent, 0);
}

void StallingProxy::Accept() {
  UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(server_port_);
  if (!client.valid() || !server.valid() ||
      connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return;  // The client finds it closed.
  }
  Connection connection;
  connection.client = std::move(client);
  connection.server = std::move(server);
  connections_.push_back(std::move(connection));
}

bool StallingProxy::Move(Connection* connection, short client_events, short server_events) {
  // A client that is gone takes nothing any more, and what it sent last matters to nobody.
  if ((client_events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return false;
  if ((client_events & POLLIN) != 0 && !Receive(connection->client.get(), &connection->to_server)) {
    return false;
  }
  if ((server_events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    connection->server_ended = !Receive(connection->server.get(), &connection->to_client);
  }
  Send(Direction::kToServer, connection->server.get(), &connection->to_server);
  Send(Direction::kToClient, connection->client.get(), &connection->to_client);
  // What a server said before it went reaches the client; what is held back does once released.
  return !connection->server_ended || !connection->to_client.empty();
}

void StallingProxy::Run() {
  while (!stopping_.load()) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      // Both are read from even while nothing is forwarded: a peer that gets no room cannot even
      // say that it ends. How much that may be is up to the flow control of whatever passes
      // through.
      short client = POLLIN | POLLRDHUP, server = POLLIN;
      if (Sendable(Direction::kToClient, connection.to_client) > 0) client |= POLLOUT;
      if (Sendable(Direction::kToServer, connection.to_server) > 0) server |= POLLOUT;
      polled.push_back({connection.client.get(), client, 0});
      // One that has ended would be told of again and again while the client waits.
      polled.push_back({connection.server_ended ? -1 : connection.server.get(), server, 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    eventfd_t ignored;
    (void)eventfd_read(wake_.get(), &ignored);
    std::vector<Connection> kept;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (Move(&connections_[i], polled[2 + 2 * i].revents, polled[3 + 2 * i].revents))
        kept.push_back(std::move(connections_[i]));
    }
    connections_ = std::move(kept);
    if ((polled[1].revents & POLLIN) != 0) Accept();
  }
  connections_.clear();
}

}  // namespace tessera::testing_support
