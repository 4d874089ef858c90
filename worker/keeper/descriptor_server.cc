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
#include "shm/local_messages.h"
#include "worker/keeper/direct_map_socket.h"

namespace tessera {
namespace {

// Between two tries to accept where the process lacks descriptors or memory.
constexpr absl::Duration kAcceptDelay = absl::Milliseconds(100);
// Between two lines on refusals of other users.
constexpr absl::Duration kBetweenLines = absl::Seconds(1);
// A request that names a job and a few patterns. Larger ones get a thread.
constexpr size_t kMaxQuickRequestBytes = 512;
// Every user of the host may ask; the folder's mode limits which users reach the socket.
constexpr mode_t kSocketMode = 0666;

// Errors: DeadlineExceeded.
absl::Status AwaitPacket(int socket, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    pollfd wait = {socket, POLLIN, 0};
    const absl::Duration left = std::max(deadline - SteadyNow(), absl::ZeroDuration());
    // Rounded up, or the last millisecond would be spent in polls that return at once.
    const int ready =
        poll(&wait, 1, absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no request arrived within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(const std::string& path,
                                                                          Keeper* keeper,
                                                                          const Options& options) {
  ASSIGN_OR_RETURN(UniqueFd listener, ListenPacketSocket(path, kSocketMode));
  // The poll says that a connection waits, and it may be gone by the accept.
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
    // Ends the reads in which the threads sit. The descriptors stay theirs until they are joined.
    for (auto& [fd, connection] : connections_) shutdown(fd, SHUT_RDWR);
  }
  WakeAcceptor();
  // Before the connections: it reaps those that finish, and would join the same threads.
  if (acceptor_.joinable()) acceptor_.join();
  absl::flat_hash_map<int, std::unique_ptr<Connection>> connections;
  {
    // Joined outside the lock, which the threads take as they end.
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
    // Without a timeout if all is well: an end, a stop and a connection each wake it.
    poll(wait, 2, last.ok() ? -1 : absl::ToInt64Milliseconds(kAcceptDelay));
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof(count));
    // Before accepting, since the finished ones free descriptors and threads.
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
    // Only what cannot wait is done on this thread. A connection that says nothing gets its own.
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
  const absl::StatusOr<PacketPeer> peer = PeerOf(fd);
  absl::Status status = peer.ok() ? CheckHasRoom(*peer) : peer.status();
  // The acceptor serves a quick map by itself, which saves its client the start of a thread.
  if (status.ok()) {
    if (!AnswerAtOnce(fd, *peer, &map)) return;
    status = StartServing(&socket, *peer, std::move(map));
  }
  if (!status.ok()) Refuse(fd, peer.value_or(PacketPeer()), status);
}

void DescriptorServer::Refuse(int socket, const PacketPeer& peer, absl::Status why) {
  if (absl::IsResourceExhausted(why)) why = WithRetry(std::move(why), v1::RETRY_SOON);
  // Nobody waits for a peer that does not read.
  (void)SendPacket(socket, EncodeReply(why), {}, /*wait=*/false);
  const bool is_own = IsOwnUser(peer);
  // A trainer that is told to retry is not logged.
  if (is_own && RetryOf(why) != v1::RETRY_NEVER && !absl::IsResourceExhausted(why)) return;
  {
    absl::MutexLock lock(&mu_);
    // Anybody can have a line here.
    if (!is_own && SteadyNow() - last_told_ < kBetweenLines) return;
    last_told_ = SteadyNow();
  }
  TESSERA_LOG(WARNING, "descriptor socket: process {} of user {}: {}", peer.pid, peer.uid,
              why.ToString());
}

absl::Status DescriptorServer::CheckHasRoom(const PacketPeer& peer) {
  absl::MutexLock lock(&mu_);
  int silent = 0, of_others = 0;
  // A connection that was given something is bounded by what there is to give.
  for (const auto& [fd, connection] : connections_) {
    if (connection->was_given) continue;
    ++silent;
    if (!IsOwnUser({0, connection->uid})) ++of_others;
  }
  // Other users can fill a quarter of the places, never all.
  if (silent < options_.max_silent && (IsOwnUser(peer) || of_others < options_.max_silent / 4))
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(silent, " connections have been given nothing yet, ", of_others,
                   " of them of other users: try again"));
}

bool DescriptorServer::AnswerAtOnce(int socket, const PacketPeer& peer,
                                    std::unique_ptr<DirectMap>* map) {
  char bytes[kMaxQuickRequestBytes];
  // Only peeked at: what is not quick is left for the connection's thread.
  const ssize_t size = recv(socket, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
  // What is not here yet, is longer, or is another user's goes to a thread, which may wait for it.
  if (options_.direct_maps == nullptr || !IsOwnUser(peer) || size <= 0 ||
      size > static_cast<ssize_t>(sizeof(bytes)))
    return true;
  const absl::StatusOr<v1::LocalRequest> request =
      ParseRequest(absl::string_view(bytes, static_cast<size_t>(size)));
  if (!request.ok() || !request->has_map() || !options_.direct_maps->IsQuick(request->map()))
    return true;
  if (!ReceiveBytes(socket).ok()) return false;  // What was looked at.
  *map = AnswerDirectMap(socket, options_.direct_maps, request->map());
  return *map != nullptr;
}

absl::Status DescriptorServer::StartServing(UniqueFd* socket, const PacketPeer& peer,
                                            std::unique_ptr<DirectMap> answered) {
  const int fd = socket->get();
  // Held while the thread starts: it looks itself up in the table when it ends.
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::OkStatus();
  auto connection = std::make_unique<Connection>();
  connection->uid = peer.uid;
  connection->was_given = answered != nullptr;
  ASSIGN_OR_RETURN(
      connection->thread,
      StartThread("a trainer's connection", [this, fd, peer, map = std::move(answered)]() mutable {
        Serve(fd, peer, std::move(map));
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
      // The descriptor closes with the connection, after it has left the table: its number may come
      // again at once.
      if (!current->second->finished) continue;
      finished.push_back(std::move(current->second));
      connections_.erase(current);
    }
  }
  // Outside the lock: the thread took it last, and may still hold it.
  for (auto& connection : finished) connection->thread.join();
}

absl::StatusOr<v1::LocalRequest> DescriptorServer::ReceiveRequest(int socket) const {
  // A peer that says nothing keeps its thread only so long.
  RETURN_IF_ERROR(AwaitPacket(socket, options_.request_timeout));
  ASSIGN_OR_RETURN(const std::string packet, ReceiveBytes(socket));
  return ParseRequest(packet);
}

void DescriptorServer::NoteGiven(int socket) {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(socket);
  if (it != connections_.end()) it->second->was_given = true;
}

absl::Status DescriptorServer::ServeTrainer(int socket, const PacketPeer& peer,
                                            const v1::AttachRequest& request) {
  ASSIGN_OR_RETURN(AttachedTrainer trainer, keeper_->Attach(request, peer));
  NoteGiven(socket);
  v1::LocalReply reply;
  *reply.mutable_attached() = trainer.given.response;
  std::vector<int> fds;
  for (const UniqueFd& fd : trainer.given.fds) fds.push_back(fd.get());
  // The first packet of a socket has room. If it fails the trainer is gone, and is not waited for.
  const absl::Status sent = SendPacket(socket, EncodeReply(reply), fds, /*wait=*/false);
  trainer.given.fds.clear();  // The trainer's alone, so that the end of its executor is seen.
  // One that never heard that it is attached has done nothing.
  Leaving how = !sent.ok() && !trainer.hosts_executor ? Leaving::kLeft : Leaving::kDied;
  if (sent.ok()) how = HearTrainer(socket, trainer);
  bool stopping;
  {
    absl::MutexLock lock(&mu_);
    stopping = stopping_;
  }
  // A daemon that stops closes the sockets itself: its trainers did not die.
  keeper_->Detach(trainer, stopping && how == Leaving::kDied ? Leaving::kLeft : how);
  return absl::OkStatus();
}

Leaving DescriptorServer::HearTrainer(int socket, const AttachedTrainer& trainer) {
  while (true) {
    // Without a deadline: its end is how a trainer's death is seen, whenever that comes.
    const absl::StatusOr<std::string> packet = ReceiveBytes(socket);
    const auto request = packet.ok() ? ParseRequest(*packet) : packet.status();
    if (request.ok() && request->has_detach())
      return request->detach().unfinished() ? Leaving::kLeft : Leaving::kDone;
    // Anything else, the end included, is the trainer's death.
    if (!request.ok() || !request->has_report() || !CheckReport(request->report()).ok())
      return Leaving::kDied;
    keeper_->Report(trainer, request->report());
  }
}

absl::Status DescriptorServer::ServeRequest(int socket, const PacketPeer& peer) {
  ASSIGN_OR_RETURN(const v1::LocalRequest request, ReceiveRequest(socket));
  if (request.has_attach()) return ServeTrainer(socket, peer, request.attach());
  // Everything but attaching is for the worker's own user.
  RETURN_IF_ERROR(CheckPeerUser(socket));
  if (request.has_map() && options_.direct_maps != nullptr) {
    NoteGiven(socket);
    const auto map = AnswerDirectMap(socket, options_.direct_maps, request.map());
    if (map != nullptr) ServeDirectMap(socket, *map);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("the request asks for nothing that this worker gives");
}

void DescriptorServer::Serve(int socket, const PacketPeer& peer,
                             std::unique_ptr<DirectMap> answered) {
  if (answered != nullptr) {
    ServeDirectMap(socket, *answered);
  } else if (const absl::Status status = ServeRequest(socket, peer); !status.ok()) {
    Refuse(socket, peer, status);
  }
  answered.reset();  // Its place is free before its client knows of it.
  // The peer sees the end at once. The descriptor itself is closed by the acceptor, which joins.
  shutdown(socket, SHUT_RDWR);
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(socket);
    if (it != connections_.end()) it->second->finished = true;
  }
  WakeAcceptor();
}

}  // namespace tessera
