#include "coordinator/service/outbox.h"

namespace tessera::coordinator {

void Outbox::Push(Command command) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    if (commands_.size() < kMaxCommands) {
      commands_.push_back(std::move(command));
      return;
    }
  }
  // A worker that is this far behind gets what it missed when it connects again.
  Close();
}

std::optional<Command> Outbox::Pop() {
  const auto ready = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !commands_.empty(); };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&ready));
  // What is left is not sent: the worker gets what it missed when it connects again.
  if (closed_) return std::nullopt;
  Command command = std::move(commands_.front());
  commands_.pop_front();
  return command;
}

void Outbox::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  // Under the lock: once Detach has returned, the stream that this cancels may be destroyed.
  if (on_close_ != nullptr) on_close_();
  on_close_ = nullptr;
}

void Outbox::Detach() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  on_close_ = nullptr;
}

}  // namespace tessera::coordinator
