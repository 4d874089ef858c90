#include "coordinator/service/live/put_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "coordinator/service/live/worker_failure.h"

namespace tessera::coordinator {
namespace {

// How often a wait checks for its cancellation.
constexpr absl::Duration kPoll = absl::Milliseconds(100);
// More than a worker has to report.
constexpr size_t kMaxEvents = 16;

}  // namespace

absl::Status PutLine::TroubleLocked() const {
  if (failure_.has_value()) return *failure_;
  if (closed_) return absl::CancelledError("the put was ended");
  if (ended_)
    return absl::UnavailableError(absl::StrCat("worker '", worker_, "' ended its stream"));
  return absl::OkStatus();
}

absl::Status PutLine::Send(v1::PutCommand command, absl::Time deadline,
                           absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || ended_ || failure_.has_value() || commands_.size() < kMaxCommands;
  };
  while (!ready()) {
    if (cancelled()) return absl::CancelledError("the client is gone");
    const absl::Time now = SteadyNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("worker '", worker_, "' accepts no data"));
    }
    AwaitWithDeadline(&mu_, absl::Condition(&ready), std::min(deadline, now + kPoll));
  }
  const absl::Status trouble = TroubleLocked();
  if (trouble.ok()) commands_.push_back(std::move(command));
  return trouble;
}

absl::StatusOr<v1::PutEvent> PutLine::Next(absl::Time deadline,
                                           absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || ended_ || failure_.has_value() || !events_.empty();
  };
  while (!ready()) {
    if (cancelled()) return absl::CancelledError("the client is gone");
    const absl::Time now = SteadyNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("worker '", worker_, "' does not answer"));
    }
    AwaitWithDeadline(&mu_, absl::Condition(&ready), std::min(deadline, now + kPoll));
  }
  if (events_.empty()) return TroubleLocked();
  v1::PutEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

bool PutLine::has_failed() const {
  absl::MutexLock lock(&mu_);
  return failure_.has_value();
}

void PutLine::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  commands_.clear();
  if (on_close_ != nullptr) on_close_();
  on_close_ = nullptr;
}

bool PutLine::Attach(std::function<void()> on_close) {
  absl::MutexLock lock(&mu_);
  if (closed_ || attached_) return false;
  attached_ = true;
  on_close_ = std::move(on_close);
  return true;
}

std::optional<v1::PutCommand> PutLine::Pop() {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || ended_ || !commands_.empty();
  };
  mu_.Await(absl::Condition(&ready));
  if (closed_ || ended_) return std::nullopt;
  v1::PutCommand command = std::move(commands_.front());
  commands_.pop_front();
  return command;
}

bool PutLine::Push(v1::PutEvent event) {
  absl::MutexLock lock(&mu_);
  if (closed_ || events_.size() == kMaxEvents) return false;
  if (!event.has_failure()) {
    events_.push_back(std::move(event));
    return true;
  }
  failure_ = WorkerFailure(worker_, event.failure());
  return true;
}

void PutLine::Detach() {
  absl::MutexLock lock(&mu_);
  on_close_ = nullptr;
  ended_ = true;
}

}  // namespace tessera::coordinator
