#include "net/local_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "grpcpp/server.h"
#include "grpcpp/server_posix.h"

namespace tessera {
namespace {

constexpr size_t kMaxConnectionsOfUser = 512;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket '", path, "': its path must have 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Removes a socket on which nobody listens any more.
absl::Status RemoveFormer(const std::string& path, const sockaddr_un& address) {
  const std::string what = absl::StrCat("socket '", path, "'");
  struct stat info;
  if (lstat(path.c_str(), &info) != 0)
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, what);
  if (!S_ISSOCK(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(what, ": something else is there"));
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return ErrnoStatus(errno, what);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return absl::AlreadyExistsError(absl::StrCat(what, ": another process listens there"));
  }
  if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, what);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Bind(const std::string& path) {
  const std::string what = absl::StrCat("socket '", path, "'");
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  RETURN_IF_ERROR(RemoveFormer(path, address));
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener.valid() || !stop.valid()) return ErrnoStatus(errno, what);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, what);
  }
  return std::unique_ptr<LocalListener>(
      new LocalListener(path, std::move(listener), std::move(stop)));
}

LocalListener::~LocalListener() { Stop(); }

absl::Status LocalListener::Serve(grpc::Server* server) {
  ASSIGN_OR_RETURN(thread_, StartThread("local connections", [this, server] { Run(server); }));
  return absl::OkStatus();
}

void LocalListener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  thread_.join();
  unlink(path_.c_str());
}

std::optional<uid_t> LocalListener::UserOf(absl::string_view peer) const {
  int number = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &number)) return std::nullopt;
  absl::MutexLock lock(&mu_);
  const auto it = users_.find(number);
  if (it == users_.end()) return std::nullopt;
  return it->second;
}

void LocalListener::Run(grpc::Server* server) {
  pollfd polled[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  bool is_short = false;
  while (polled[1].revents == 0) {
    // Out of descriptors: the ones that wait are taken once others have ended.
    if (poll(is_short ? &polled[1] : polled, is_short ? 1 : 2, is_short ? 100 : -1) < 0) continue;
    UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool was_short = std::exchange(
        is_short, !connection.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM));
    if (is_short && !was_short) TESSERA_LOG(WARNING, "socket '{}': no descriptor is free", path_);
    if (!connection.valid()) continue;
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    UniqueFd numbered = Number(std::move(connection), peer.uid);
    if (!numbered.valid()) {
      TESSERA_LOG(WARNING, "socket '{}': uid {} has {} connections already", path_, peer.uid,
                  kMaxConnectionsOfUser);
      continue;
    }
    grpc::AddInsecureChannelFromFd(server, numbered.Release());
  }
}

UniqueFd LocalListener::Number(UniqueFd connection, uid_t user) {
  absl::MutexLock lock(&mu_);
  std::set<int>& own = numbers_[user];
  const auto as = [&](int number) {
    return UniqueFd(fcntl(connection.get(), F_DUPFD_CLOEXEC, number));
  };
  for (const int number : own) {
    UniqueFd copy = as(number);
    if (copy.get() == number) return copy;
  }
  if (own.size() >= kMaxConnectionsOfUser) return UniqueFd();
  // Above all that anybody has had.
  UniqueFd fresh = users_.empty() ? std::move(connection) : as(users_.rbegin()->first + 1);
  if (!fresh.valid()) return fresh;
  users_[fresh.get()] = user;
  own.insert(fresh.get());
  return fresh;
}

}  // namespace tessera
