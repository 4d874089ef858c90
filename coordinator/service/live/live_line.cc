#include "coordinator/service/live/live_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "coordinator/service/live/worker_failure.h"

namespace tessera::coordinator {
namespace {

// How often a wait checks for its cancellation.
constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

void LiveLine::Send(v1::LiveCommand command) {
  absl::MutexLock lock(&mu_);
  command_ = std::move(command);
}

absl::StatusOr<v1::LiveEvent> LiveLine::Next(absl::Time deadline,
                                             absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || ended_ || !events_.empty();
  };
  while (!ready()) {
    if (cancelled()) return absl::CancelledError("the reader is gone");
    const absl::Time now = SteadyNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("worker '", worker_, "' does not answer"));
    }
    AwaitWithDeadline(&mu_, absl::Condition(&ready), std::min(deadline, now + kPoll));
  }
  if (closed_) return absl::CancelledError("the reading was ended");
  if (events_.empty()) {
    return absl::UnavailableError(absl::StrCat("worker '", worker_, "' ended its stream"));
  }
  v1::LiveEvent event = std::move(events_.front());
  events_.pop_front();
  if (!event.has_failure()) return event;
  return WorkerFailure(worker_, event.failure());
}

bool LiveLine::HasFailed() {
  absl::MutexLock lock(&mu_);
  if (events_.empty()) return closed_ || ended_;
  return std::any_of(events_.begin(), events_.end(),
                     [](const v1::LiveEvent& event) { return event.has_failure(); });
}

void LiveLine::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  events_.clear();
  if (on_close_ != nullptr) on_close_();
  on_close_ = nullptr;
}

bool LiveLine::Attach(std::function<void()> on_close) {
  absl::MutexLock lock(&mu_);
  if (closed_ || attached_) return false;
  attached_ = true;
  on_close_ = std::move(on_close);
  return true;
}

std::optional<v1::LiveCommand> LiveLine::AwaitCommand(absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || command_.has_value();
  };
  while (!AwaitWithTimeout(&mu_, absl::Condition(&ready), kPoll)) {
    if (cancelled()) return std::nullopt;
  }
  if (closed_) return std::nullopt;
  return std::exchange(command_, std::nullopt);
}

bool LiveLine::Push(v1::LiveEvent event) {
  absl::MutexLock lock(&mu_);
  const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || events_.size() < kMaxEvents;
  };
  mu_.Await(absl::Condition(&room));
  if (closed_) return false;
  events_.push_back(std::move(event));
  return true;
}

void LiveLine::Detach() {
  absl::MutexLock lock(&mu_);
  on_close_ = nullptr;
  ended_ = true;
}

}  // namespace tessera::coordinator
