#include "worker/keeper/descriptor_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "worker/memory/fd_passing.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(const std::string& path,
                                                                          Keeper* keeper) {
  ASSIGN_OR_RETURN(UniqueFd listener, ListenPacketSocket(path));
  return std::unique_ptr<DescriptorServer>(new DescriptorServer(path, std::move(listener), keeper));
}

DescriptorServer::DescriptorServer(std::string path, UniqueFd listener, Keeper* keeper)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      keeper_(keeper),
      acceptor_([this] { AcceptLoop(); }) {}

DescriptorServer::~DescriptorServer() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [fd, connection] : connections_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  absl::flat_hash_map<int, std::unique_ptr<Connection>> connections;
  {
    absl::MutexLock lock(&mu_);
    connections.swap(connections_);
  }
  for (auto& [fd, connection] : connections) connection->thread.join();
  unlink(path_.c_str());
}

void DescriptorServer::AcceptLoop() {
  while (true) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ReapFinished();
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    if (!socket.valid()) continue;
    const int fd = socket.get();
    auto connection = std::make_unique<Connection>();
    connection->socket = std::move(socket);
    connection->thread = std::thread([this, fd] { Serve(fd); });
    connections_[fd] = std::move(connection);
  }
}

void DescriptorServer::ReapFinished() {
  std::vector<std::unique_ptr<Connection>> finished;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto current = it++;
      if (!current->second->finished) continue;
      finished.push_back(std::move(current->second));
      connections_.erase(current);
    }
  }
  for (auto& connection : finished) connection->thread.join();
}

absl::StatusOr<ClaimedAttachment> DescriptorServer::ReceiveClaim(int socket) {
  RETURN_IF_ERROR(CheckPeerUser(socket));
  ASSIGN_OR_RETURN(const Packet ticket, ReceivePacket(socket));
  return keeper_->Claim(ticket.bytes);
}

void DescriptorServer::Serve(int socket) {
  const absl::StatusOr<ClaimedAttachment> claimed = ReceiveClaim(socket);
  if (!claimed.ok()) {
    TESSERA_LOG(WARNING, "descriptor socket: {}", claimed.status().ToString());
    (void)SendPacket(socket, claimed.status().ToString());
  } else {
    bool clean = false;
    if (SendPacket(socket, "ok", claimed->fds).ok()) {
      const absl::StatusOr<Packet> last = ReceivePacket(socket);
      clean = last.ok() && last->bytes == "detach";
    }
    bool stopping;
    {
      absl::MutexLock lock(&mu_);
      stopping = stopping_;
    }
    keeper_->Detach(*claimed, clean || stopping);
  }
  shutdown(socket, SHUT_RDWR);
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(socket);
  if (it != connections_.end()) it->second->finished = true;
}

}  // namespace tessera
