#include "base/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::string NameFor(const std::string& path) { return absl::StrCat("socket '", path, "'"); }

// Removes a socket on which nobody listens any more, and nothing else.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0)
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, NameFor(path));
  if (!S_ISSOCK(info.st_mode))
    return absl::InvalidArgumentError(
        absl::StrCat(NameFor(path), ": something else is there, which stays: remove it"));
  const UniqueFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return ErrnoStatus(errno, NameFor(path));
  const int error = ConnectUnixSocket(probe.get(), address);
  // A full backlog is a sign of a listener too, and so is a socket of another type.
  if (error == 0 || error == EAGAIN || error == EPROTOTYPE)
    return absl::AlreadyExistsError(absl::StrCat(NameFor(path), ": another process listens there"));
  if (error == ENOENT) return absl::OkStatus();
  if (error != ECONNREFUSED) return ErrnoStatus(error, NameFor(path));
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, NameFor(path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<sockaddr_un> UnixSocketAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(NameFor(path), ": its path must have 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int ConnectUnixSocket(int socket, const sockaddr_un& address) {
  return connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                            : errno;
}

absl::StatusOr<UniqueFd> ListenUnixSocket(const std::string& path, int type, mode_t mode) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixSocketAddress(path));
  RETURN_IF_ERROR(RemoveStale(path, address, type));
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return ErrnoStatus(errno, NameFor(path));

  // Made ready under another name and then linked. A client that came between bind, chmod and
  // listen would be refused, and would take that for the last word.
  const std::filesystem::path place(path);
  const std::string folder_name = place.has_parent_path() ? place.parent_path().string() : ".";
  const UniqueFd folder(open(folder_name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, NameFor(path));
  const std::string name = place.filename().string();
  const std::string making = absl::StrCat(".socket-", getpid(), "-", listener.get());
  // By the folder's descriptor, since an address has room for 107 bytes.
  ASSIGN_OR_RETURN(const sockaddr_un bound,
                   UnixSocketAddress(absl::StrCat("/proc/self/fd/", folder.get(), "/", making)));
  unlinkat(folder.get(), making.c_str(), 0);
  // Closed to others until the mode is set: Linux makes the file with the socket's own mode.
  if (fchmod(listener.get(), 0600) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&bound), sizeof(bound)) != 0)
    return ErrnoStatus(errno, NameFor(path));
  absl::Cleanup remove = [&] { unlinkat(folder.get(), making.c_str(), 0); };
  if (fchmodat(folder.get(), making.c_str(), mode, 0) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      linkat(folder.get(), making.c_str(), folder.get(), name.c_str(), 0) != 0)
    return ErrnoStatus(errno, NameFor(path));
  return listener;
}

}  // namespace tessera
