#include "base/notify_listener.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<NotifyListener>> NotifyListener::Start(const std::string& path,
                                                                      absl::Duration patience) {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return ErrnoStatus(errno, path);
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  setenv("WATCHDOG_USEC", absl::StrCat(absl::ToInt64Microseconds(patience)).c_str(), 1);
  return std::unique_ptr<NotifyListener>(new NotifyListener(std::move(fd)));
}

NotifyListener::~NotifyListener() {
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
}

std::string NotifyListener::Next(absl::Duration patience) const {
  pollfd readable = {socket_.get(), POLLIN, 0};
  if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return "";
  std::string message(256, '\0');
  message.resize(std::max<ssize_t>(recv(socket_.get(), message.data(), message.size(), 0), 0));
  return message;
}

bool NotifyListener::Await(const std::string& message) const {
  while (true) {
    const std::string next = Next();
    if (next.empty() || next == message) return next == message;
  }
}

}  // namespace tessera
