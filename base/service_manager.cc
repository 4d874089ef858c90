#include "base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

constexpr char kSocket[] = "NOTIFY_SOCKET", kPatience[] = "WATCHDOG_USEC", kOf[] = "WATCHDOG_PID";

// The variable's value, which it has no more; empty where it had none.
std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  const std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

absl::Status Refusal(const char* name, const std::string& value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("$", name, " '", value, "': is not a ", want));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceManager>> ServiceManager::FromEnvironment() {
  // Taken out of the environment, so that child processes do not answer for this one.
  std::string address = Take(kSocket);
  const std::string patience = Take(kPatience), of = Take(kOf);
  if (!address.empty() && (address.size() < 2 || address.size() >= sizeof(sockaddr_un::sun_path) ||
                           (address[0] != '/' && address[0] != '@'))) {
    return Refusal(kSocket, address, "path of a socket; abstract names are not supported");
  }
  if (!address.empty() && address[0] == '@') address[0] = '\0';
  int64_t microseconds = 0;
  if (!patience.empty() && (!absl::SimpleAtoi(patience, &microseconds) || microseconds <= 0))
    return Refusal(kPatience, patience, "number of microseconds");
  // It may be meant for the process that started this one.
  if (!of.empty() && of != absl::StrCat(getpid())) microseconds = 0;
  return std::unique_ptr<ServiceManager>(
      new ServiceManager(std::move(address), absl::Microseconds(microseconds)));
}

void ServiceManager::EndWatch() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  if (watch_.joinable()) watch_.join();
}

absl::Status ServiceManager::Watch(std::function<bool()> makes_progress) {
  if (address_.empty() || patience_ == absl::ZeroDuration()) return absl::OkStatus();
  ASSIGN_OR_RETURN(watch_, StartThread("the watchdog", [this, makes_progress] {
                     do {
                       // If this call hangs, nothing is told either, which the manager acts on.
                       if (makes_progress()) Tell("WATCHDOG=1");
                       absl::MutexLock lock(&mu_);
                       // Twice in the time that the manager grants.
                       if (AwaitWithTimeout(&mu_, absl::Condition(&ended_), patience_ / 2)) return;
                     } while (true);
                   }));
  return absl::OkStatus();
}

void ServiceManager::Tell(absl::string_view message) const {
  if (address_.empty()) return;
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  memcpy(to.sun_path, address_.data(), address_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
                            reinterpret_cast<const sockaddr*>(&to), size) < 0) {
    TESSERA_LOG(WARNING, "cannot notify the service manager of {}: {}", std::string(message),
                ErrnoStatus(errno, "its socket").ToString());
  }
}

}  // namespace tessera
