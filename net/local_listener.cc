#include "net/local_listener.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/unix_socket.h"
#include "grpcpp/server.h"
#include "grpcpp/server_posix.h"

namespace tessera {
namespace {

constexpr size_t kMaxConnectionsOfUser = 512;
// A call ends with its connection, but for what its handler does then.
constexpr absl::Duration kKeptAfterItsEnd = absl::Minutes(10);

}  // namespace

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Bind(const std::string& path) {
  // Every user may connect. The kernel says which one it is.
  ASSIGN_OR_RETURN(UniqueFd listener, ListenUnixSocket(path, SOCK_STREAM | SOCK_NONBLOCK, 0666));
  return absl::WrapUnique(new LocalListener(path, std::move(listener)));
}

LocalListener::LocalListener(const std::string& path, UniqueFd listener)
    : path_(path), loop_(absl::StrCat("socket '", path, "'"), std::move(listener)) {}

LocalListener::~LocalListener() { Stop(); }

absl::Status LocalListener::Serve(grpc::Server* server) {
  return loop_.Start(
      [this, server](UniqueFd connection) { return Take(std::move(connection), server); });
}

void LocalListener::Stop() {
  // The name last: nobody accepts here any more, so it would lead nowhere.
  if (loop_.Stop()) unlink(path_.c_str());
}

std::optional<uid_t> LocalListener::UserOf(absl::string_view peer) const {
  int number = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &number)) return std::nullopt;
  absl::MutexLock lock(&mu_);
  const auto it = owned_.find(number);
  if (it == owned_.end()) return std::nullopt;
  return it->second.user;
}

absl::Status LocalListener::Take(UniqueFd connection, grpc::Server* server) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return ErrnoStatus(errno, "whose connection it is");
  // gRPC gets only the copy, whose number UserOf knows: by it gRPC names the connection.
  ASSIGN_OR_RETURN(UniqueFd numbered, Number(connection, peer.uid));
  grpc::AddInsecureChannelFromFd(server, numbered.Release());
  return absl::OkStatus();
}

size_t LocalListener::Sweep(uid_t user) {
  const absl::Time now = SteadyNow();
  size_t count = 0;
  for (auto it = owned_.begin(); it != owned_.end();) {
    Owned& owned = it->second;
    struct stat info;
    // The number may be another socket's by now, so the inode decides.
    const bool is_there = fstat(it->first, &info) == 0 && info.st_ino == owned.socket;
    if (!is_there) owned.ended_at = std::min(owned.ended_at, now);
    if (now - owned.ended_at > kKeptAfterItsEnd) {
      it = owned_.erase(it);
      continue;
    }
    count += owned.user == user;
    ++it;
  }
  return count;
}

absl::StatusOr<UniqueFd> LocalListener::Number(const UniqueFd& connection, uid_t user) {
  absl::MutexLock lock(&mu_);
  struct stat info;
  if (fstat(connection.get(), &info) != 0) return ErrnoStatus(errno, "a connection");
  const size_t has = Sweep(user);
  int number = -1;
  // Numbers of the user's ended connections are used again.
  for (auto it = owned_.begin(); it != owned_.end() && number < 0; ++it) {
    if (it->second.user == user && it->second.ended_at != absl::InfiniteFuture())
      number = it->first;
  }
  // The lowest free number that no user owns, or one that this user owned before.
  UniqueFd copy;
  for (int least = std::max(number, 0);; least = copy.get() + 1) {
    copy = UniqueFd(fcntl(connection.get(), F_DUPFD_CLOEXEC, least));
    if (!copy.valid()) return ErrnoStatus(errno, absl::StrCat("a connection of uid ", user));
    const auto owner = owned_.find(copy.get());
    if (owner == owned_.end() || owner->second.user == user) break;
  }
  if (owned_.count(copy.get()) == 0 && has >= kMaxConnectionsOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", user, " has ", kMaxConnectionsOfUser, " connections already"));
  }
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  // A quarter of the descriptors is kept for the server's own user.
  if (user != geteuid() && user != 0 && static_cast<rlim_t>(copy.get()) > limit.rlim_cur / 4 * 3) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", user, " gets no connection: too many are open"));
  }
  owned_[copy.get()] = {user, info.st_ino};
  return copy;
}

}  // namespace tessera
