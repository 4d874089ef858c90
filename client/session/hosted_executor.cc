#include "client/session/hosted_executor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<HostedExecutor>> HostedExecutor::Start(HostExecutor host,
                                                                      UniqueFd socket, int rank) {
  // A descriptor of its own: the executor closes the other one when it likes.
  UniqueFd own(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!own.valid())
    return ErrnoStatus(errno, absl::StrCat("the executor of rank ", rank, " in this process"));
  std::unique_ptr<HostedExecutor> executor(new HostedExecutor(std::move(own), rank));
  ASSIGN_OR_RETURN(
      executor->thread_,
      StartThread("the rank's executor", [executor = executor.get(), host = std::move(host),
                                          socket = std::move(socket)]() mutable {
        executor->Run(host, std::move(socket));
      }));
  return executor;
}

HostedExecutor::~HostedExecutor() {
  // It may still tell its worker how it left.
  shutdown(socket_.get(), SHUT_RD);
  if (!thread_.joinable()) return;
  bool stuck = false;
  {
    absl::MutexLock lock(&mu_);
    const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !running_ || stuck_; };
    // Waits as long as it takes: the executor uses memory of this session.
    mu_.Await(absl::Condition(&is_over));
    stuck = stuck_;
  }
  // A thread that is stuck does not touch this object any more.
  if (stuck) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void HostedExecutor::NoteStuck(const absl::Status& why) {
  TESSERA_LOG(ERROR, "the executor of rank {} in this process hangs until the process ends: {}",
              rank_, why.ToString());
  absl::MutexLock lock(&mu_);
  // Ends the destructor's wait: the trainer's process must be able to end.
  stuck_ = true;
  status_ = why;
}

void HostedExecutor::Run(const HostExecutor& host, UniqueFd socket) {
  absl::Status status =
      host(std::move(socket), [this](const absl::Status& why) { NoteStuck(why); });
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("the executor of rank ", rank_, " in this process"));
    TESSERA_LOG(WARNING, "{}", status.ToString());
  }
  {
    absl::MutexLock lock(&mu_);
    running_ = false;
    status_ = std::move(status);
  }
  // This tells the worker that it no longer uses the rank's memory, even if a child has inherited
  // the socket. Unread commands, if any, would make the worker's next read an error.
  shutdown(socket_.get(), SHUT_RDWR);
  char unread;
  while (recv(socket_.get(), &unread, sizeof(unread), MSG_DONTWAIT) > 0) {
  }
}

bool HostedExecutor::running() const {
  absl::MutexLock lock(&mu_);
  return running_;
}

absl::Status HostedExecutor::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

}  // namespace tessera
