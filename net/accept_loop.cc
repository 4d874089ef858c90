#include "net/accept_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

constexpr int kAtOnce = 64;  // From one socket, before others have their turn.
constexpr int kRetryMs = 100;
constexpr absl::Duration kBetweenWarnings = absl::Seconds(10);

}  // namespace

AcceptLoop::AcceptLoop(std::string name, std::vector<UniqueFd> sockets)
    : name_(std::move(name)), sockets_(std::move(sockets)) {}

AcceptLoop::AcceptLoop(std::string name, UniqueFd socket) : name_(std::move(name)) {
  sockets_.push_back(std::move(socket));
}

AcceptLoop::~AcceptLoop() { Stop(); }

absl::Status AcceptLoop::Start(Take take) {
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return ErrnoStatus(errno, "eventfd");
  ASSIGN_OR_RETURN(thread_, StartThread(name_, [this, take = std::move(take)] { Run(take); }));
  return absl::OkStatus();
}

bool AcceptLoop::Stop() {
  if (!thread_.joinable()) return false;
  const uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  thread_.join();
  return true;
}

void AcceptLoop::Run(const Take& take) {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& socket : sockets_) polled.push_back({socket.get(), POLLIN, 0});
  bool is_short = false;
  while (true) {
    // Out of descriptors: the connections that wait are taken once others have ended.
    const int count = poll(polled.data(), is_short ? 1 : polled.size(), is_short ? kRetryMs : -1);
    if (count < 0) continue;
    if (polled[0].revents != 0) return;
    is_short = false;
    for (const UniqueFd& socket : sockets_) is_short |= !AcceptFrom(socket, take);
  }
}

bool AcceptLoop::AcceptFrom(const UniqueFd& socket, const Take& take) {
  for (int i = 0; i < kAtOnce; ++i) {
    UniqueFd connection(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      // The client may be gone by now. Other errors are of the machine, and pass.
      if (errno == EAGAIN) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      Warn(std::string(ErrnoStatus(errno, "cannot take connections").message()));
      return false;
    }
    const absl::Status taken = take(std::move(connection));
    if (!taken.ok()) Warn(std::string(taken.message()));
  }
  return true;
}

void AcceptLoop::Warn(const std::string& what) {
  if (SteadyNow() - warned_at_ < kBetweenWarnings) return;
  warned_at_ = SteadyNow();
  TESSERA_LOG(WARNING, "{}: {}", name_, what);
}

}  // namespace tessera
