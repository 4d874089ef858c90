// One worker's stream of a put, between the thread that serves the client and the threads that
// serve the worker's stream.
//
//   client's   Send(command) ──[c c]──► Pop()        stream's writer
//   thread     Next()        ◄─────────  Push(event)  stream's reader
//
// Send waits while the queue is full, so a slow worker makes the client wait, and at most
// kMaxCommands pieces per worker are buffered. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_LINE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_LINE_H_

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

class PutLine {
 public:
  explicit PutLine(std::string worker) : worker_(std::move(worker)) {}
  static constexpr size_t kMaxCommands = 4;  // Of at most 1 MiB each.

  const std::string& worker() const { return worker_; }

  // --- The client's side. Errors of both name the worker: ---
  // Errors: DeadlineExceeded; Cancelled  `cancelled` became true, or Close() was called;
  //         Unavailable  the stream ended; what the worker said.
  // The stream may attach later.
  absl::Status Send(v1::PutCommand command, absl::Time deadline,
                    absl::FunctionRef<bool()> cancelled);
  // Waits for the next event. A failure event becomes the status.
  absl::StatusOr<v1::PutEvent> Next(absl::Time deadline, absl::FunctionRef<bool()> cancelled);
  // Whether the worker reported a failure: then none of its ranks will take the put.
  bool has_failed() const;
  // Ends the stream.
  void Close();

  // --- The stream's side ---
  // `on_close` ends the stream from another thread; it is not called after Detach(). Returns false
  // if the line is closed or has a stream already.
  bool Attach(std::function<void()> on_close);
  std::optional<v1::PutCommand> Pop();  // Waits. Nullopt: closed, or the stream is ending.
  bool Push(v1::PutEvent event);        // False: closed.
  void Detach();                        // The stream is ending.

 private:
  // OK: nothing is wrong.
  absl::Status TroubleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string worker_;
  mutable absl::Mutex mu_;
  std::deque<v1::PutCommand> commands_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::PutEvent> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_close_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_LINE_H_
