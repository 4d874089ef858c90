// One worker's stream of a session, between the thread that serves a client and the threads that
// serve the stream.
//
//   client's   Send(command) ──[c c]──► Pop()        stream's writer
//   thread     Next()        ◄──[e e]── Push(event)  stream's reader
//
// Send and Push wait while their queue is full. So a slow worker makes the client wait, a slow
// client makes the worker wait (through gRPC's flow control), and at most kMaxQueued messages are
// buffered in each direction. `Event` has a failure. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_LINE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_LINE_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "coordinator/service/live/worker_failure.h"

namespace tessera::coordinator {

template <typename Command, typename Event>
class WorkerLine {
 public:
  explicit WorkerLine(std::string worker) : worker_(std::move(worker)) {}
  static constexpr size_t kMaxQueued = 4;  // Of at most 1 MiB of elements each.

  const std::string& worker() const { return worker_; }

  // --- The client's side. Errors of both name the worker: ---
  //   DeadlineExceeded
  //   Cancelled    `cancelled` became true, or Close() was called
  //   Unavailable  the stream ended
  //   what the worker said
  // The stream may attach later.
  absl::Status Send(Command command, absl::Time deadline, absl::FunctionRef<bool()> cancelled) {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(Await(&WorkerLine::CanSend, deadline, cancelled, "accepts no data"));
    RETURN_IF_ERROR(Trouble());
    commands_.push_back(std::move(command));
    return absl::OkStatus();
  }
  // Waits for the worker's next event. A failure event becomes the status of this call and of all
  // later ones.
  absl::StatusOr<Event> Next(absl::Time deadline, absl::FunctionRef<bool()> cancelled) {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(Await(&WorkerLine::CanTake, deadline, cancelled, "does not answer"));
    if (events_.empty()) return Trouble();
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  // Whether the worker reported a failure.
  bool has_failed() const {
    absl::MutexLock lock(&mu_);
    return failure_.has_value();
  }
  // Whether Next() reports the end of the stream, or a failure, without another event.
  bool has_ended() const {
    absl::MutexLock lock(&mu_);
    return events_.empty() && HasTrouble();
  }
  // Ends the stream.
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    commands_.clear();
    if (on_close_ != nullptr) on_close_();
    on_close_ = nullptr;
  }

  // --- The stream's side ---
  // `on_close` ends the stream from another thread; it is not called after Detach(). Returns false
  // if the line is closed or has a stream already.
  bool Attach(std::function<void()> on_close) {
    absl::MutexLock lock(&mu_);
    if (closed_ || attached_) return false;
    attached_ = true;
    on_close_ = std::move(on_close);
    return true;
  }
  // Waits. Nullopt: closed, or the stream is ending.
  std::optional<Command> Pop() {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closed_ || ended_ || !commands_.empty();
    };
    mu_.Await(absl::Condition(&ready));
    if (closed_ || ended_) return std::nullopt;
    Command command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }
  // False: closed.
  bool Push(Event event) {
    absl::MutexLock lock(&mu_);
    const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closed_ || events_.size() < kMaxQueued;
    };
    mu_.Await(absl::Condition(&room));
    if (closed_) return false;
    if (event.has_failure()) {
      failure_ = WorkerFailure(worker_, event.failure());
    } else {
      events_.push_back(std::move(event));
    }
    return true;
  }
  // The stream is ending.
  void Detach() {
    absl::MutexLock lock(&mu_);
    on_close_ = nullptr;
    ended_ = true;
  }

 private:
  // How often a wait checks for its cancellation.
  static constexpr absl::Duration kPoll = absl::Milliseconds(100);

  bool HasTrouble() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return failure_.has_value() || closed_ || ended_;
  }
  // OK: there is none.
  absl::Status Trouble() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (failure_.has_value()) return *failure_;
    if (closed_) return absl::CancelledError("the session was ended");
    if (!ended_) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("worker '", worker_, "' ended its stream"));
  }
  bool CanSend() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return HasTrouble() || commands_.size() < kMaxQueued;
  }
  bool CanTake() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return HasTrouble() || !events_.empty(); }
  // `late`: what the worker does not do until the deadline.
  absl::Status Await(bool (WorkerLine::*can)() const, absl::Time deadline,
                     absl::FunctionRef<bool()> cancelled, absl::string_view late)
      ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto ready = [this, can]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return (this->*can)(); };
    while (!ready()) {
      if (cancelled()) return absl::CancelledError("the client is gone");
      const absl::Time now = SteadyNow();
      if (now >= deadline)
        return absl::DeadlineExceededError(absl::StrCat("worker '", worker_, "' ", late));
      AwaitWithDeadline(&mu_, absl::Condition(&ready), std::min(deadline, now + kPoll));
    }
    return absl::OkStatus();
  }

  const std::string worker_;
  mutable absl::Mutex mu_;
  std::deque<Command> commands_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_close_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_LINE_H_
