#include "worker/keeper/descriptor_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/keeper/direct_map_socket.h"
#include "worker/memory/descriptor_claim.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// Between two tries to accept where the process lacks descriptors or memory.
constexpr absl::Duration kAcceptDelay = absl::Milliseconds(100);
constexpr size_t kMaxQuickClaimBytes = 512;

// Errors: DeadlineExceeded.
absl::Status AwaitPacket(int socket, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    pollfd wait = {socket, POLLIN, 0};
    const absl::Duration left = std::max(deadline - SteadyNow(), absl::ZeroDuration());
    const int ready =
        poll(&wait, 1, absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ticket came within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(const std::string& path,
                                                                          Keeper* keeper,
                                                                          const Options& options) {
  ASSIGN_OR_RETURN(UniqueFd listener, ListenPacketSocket(path));
  fcntl(listener.get(), F_SETFL, O_NONBLOCK);
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  std::unique_ptr<DescriptorServer> server(
      new DescriptorServer(path, std::move(listener), std::move(wake), keeper, options));
  ASSIGN_OR_RETURN(server->acceptor_,
                   StartThread("the descriptor socket", [s = server.get()] { s->AcceptLoop(); }));
  return server;
}

DescriptorServer::DescriptorServer(std::string path, UniqueFd listener, UniqueFd wake,
                                   Keeper* keeper, const Options& options)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      keeper_(keeper),
      options_(options) {}

DescriptorServer::~DescriptorServer() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [fd, connection] : connections_) shutdown(fd, SHUT_RDWR);
  }
  WakeAcceptor();
  if (acceptor_.joinable()) acceptor_.join();
  absl::flat_hash_map<int, std::unique_ptr<Connection>> connections;
  {
    absl::MutexLock lock(&mu_);
    connections.swap(connections_);
  }
  for (auto& [fd, connection] : connections) connection->thread.join();
  unlink(path_.c_str());
}

void DescriptorServer::WakeAcceptor() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // Fails only where it is awake already.
}

void DescriptorServer::AcceptLoop() {
  absl::Status last;
  while (true) {
    // While nothing can be accepted, the listener is ready all the time.
    pollfd wait[2] = {{wake_.get(), POLLIN, 0}, {last.ok() ? listener_.get() : -1, POLLIN, 0}};
    poll(wait, 2, last.ok() ? -1 : absl::ToInt64Milliseconds(kAcceptDelay));
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof(count));
    ReapFinished();
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
    }
    const absl::Status status = AcceptWaiting();
    if (!status.ok() && last.ok())
      TESSERA_LOG(ERROR, "descriptor socket {}: trainers wait: {}", path_, status.ToString());
    last = status;
  }
}

absl::Status DescriptorServer::AcceptWaiting() {
  while (true) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.valid()) {
      Admit(std::move(socket));
    } else if (errno == EAGAIN) {
      return absl::OkStatus();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoStatus(errno, "accept");
    }
  }
}

void DescriptorServer::Admit(UniqueFd socket) {
  const int fd = socket.get();
  std::unique_ptr<DirectMap> map;
  absl::Status status = CheckHasRoom();
  if (status.ok()) {
    if (!AnswerAtOnce(fd, &map)) return;
    status = StartServing(&socket, std::move(map));
  }
  if (status.ok()) return;
  TESSERA_LOG(WARNING, "descriptor socket: {}", status.ToString());
  (void)SendPacket(fd, status.ToString(), {}, /*wait=*/false);
}

absl::Status DescriptorServer::CheckHasRoom() {
  absl::MutexLock lock(&mu_);
  int num_unclaimed = 0;
  for (const auto& [other, connection] : connections_) num_unclaimed += !connection->claimed;
  if (num_unclaimed < options_.max_unclaimed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(num_unclaimed, " connections have shown no ticket yet"));
}

bool DescriptorServer::AnswerAtOnce(int socket, std::unique_ptr<DirectMap>* map) {
  char bytes[kMaxQuickClaimBytes];
  const ssize_t size = recv(socket, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
  if (size <= 0 || size > static_cast<ssize_t>(sizeof(bytes))) return true;
  const absl::string_view claim(bytes, size);
  if (options_.direct_maps == nullptr || !IsMapQuery(claim) || !CheckPeerUser(socket).ok() ||
      !options_.direct_maps->IsQuick(QueryOf(claim)))
    return true;
  if (!ReceivePacket(socket).ok()) return false;  // What was looked at.
  *map = AnswerDirectMap(socket, options_.direct_maps, claim);
  return *map != nullptr;
}

absl::Status DescriptorServer::StartServing(UniqueFd* socket, std::unique_ptr<DirectMap> answered) {
  const int fd = socket->get();
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::OkStatus();
  auto connection = std::make_unique<Connection>();
  connection->claimed = answered != nullptr;
  ASSIGN_OR_RETURN(connection->thread, StartThread("a trainer's connection",
                                                   [this, fd, map = std::move(answered)]() mutable {
                                                     Serve(fd, std::move(map));
                                                   }));
  connection->socket = std::move(*socket);
  connections_[fd] = std::move(connection);
  return absl::OkStatus();
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

absl::StatusOr<std::string> DescriptorServer::ReceiveClaim(int socket) {
  RETURN_IF_ERROR(CheckPeerUser(socket));
  RETURN_IF_ERROR(AwaitPacket(socket, options_.claim_timeout));
  ASSIGN_OR_RETURN(Packet claim, ReceivePacket(socket));
  return std::move(claim.bytes);
}

void DescriptorServer::GiveMap(int socket, const std::string& claim) {
  const absl::StatusOr<std::vector<UniqueFd>> given = options_.give_map(SessionOf(claim));
  std::vector<int> fds;
  if (given.ok())
    for (const UniqueFd& fd : *given) fds.push_back(fd.get());
  // A first packet always has room, unless its receiver is gone.
  (void)SendPacket(socket, MapReplyText(given.status()), fds, /*wait=*/false);
}

void DescriptorServer::NoteClaimed(int socket) {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(socket);
  if (it != connections_.end()) it->second->claimed = true;
}

void DescriptorServer::AwaitDetach(int socket, ClaimedAttachment claimed) {
  NoteClaimed(socket);
  bool clean = false;
  const std::string reply = ClaimReply({claimed.first_epoch, claimed.only_host});
  const absl::Status sent = SendPacket(socket, reply, claimed.fds);
  claimed.executor_socket.Reset();  // The trainer's alone, so that its end is seen.
  if (sent.ok()) {
    const absl::StatusOr<Packet> last = ReceivePacket(socket);
    clean = last.ok() && last->bytes == "detach";
  }
  bool stopping;
  {
    absl::MutexLock lock(&mu_);
    stopping = stopping_;
  }
  keeper_->Detach(claimed, clean || stopping);
}

void DescriptorServer::ServeTrainer(int socket, const std::string& claim) {
  const auto take = [&]() -> absl::StatusOr<ClaimedAttachment> {
    ASSIGN_OR_RETURN(const int pid, PeerProcess(socket));
    return keeper_->Claim(claim, pid);
  };
  absl::StatusOr<ClaimedAttachment> claimed = take();
  if (claimed.ok()) return AwaitDetach(socket, *std::move(claimed));
  TESSERA_LOG(WARNING, "descriptor socket: {}", claimed.status().ToString());
  (void)SendPacket(socket, claimed.status().ToString(), {}, /*wait=*/false);
}

void DescriptorServer::ServeClaim(int socket) {
  const absl::StatusOr<std::string> claim = ReceiveClaim(socket);
  if (!claim.ok()) {
    TESSERA_LOG(WARNING, "descriptor socket: {}", claim.status().ToString());
    (void)SendPacket(socket, claim.status().ToString(), {}, /*wait=*/false);
  } else if (options_.give_map != nullptr && IsMapClaim(*claim)) {
    GiveMap(socket, *claim);
  } else if (options_.direct_maps != nullptr && IsMapQuery(*claim)) {
    NoteClaimed(socket);
    const auto map = AnswerDirectMap(socket, options_.direct_maps, *claim);
    if (map != nullptr) ServeDirectMap(socket, *map);
  } else {
    ServeTrainer(socket, *claim);
  }
}

void DescriptorServer::Serve(int socket, std::unique_ptr<DirectMap> answered) {
  if (answered != nullptr) {
    ServeDirectMap(socket, *answered);
  } else {
    ServeClaim(socket);
  }
  answered.reset();  // Its place is free before its client knows of it.
  shutdown(socket, SHUT_RDWR);
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(socket);
    if (it != connections_.end()) it->second->finished = true;
  }
  WakeAcceptor();
}

}  // namespace tessera
