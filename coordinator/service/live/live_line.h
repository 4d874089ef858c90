// One worker's stream of a session, between the thread that serves the stream and the thread that
// reads the state for a client.
//
//   reader   Send(command) ────────► AwaitCommand()  stream's thread
//            Next()        ◄──[e e]── Push(event)    which waits while the queue is full
//
// So a client that does not read makes the worker wait, through gRPC's flow control, and at most
// kMaxEvents events per worker are buffered. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_LINE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_LINE_H_

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
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

class LiveLine {
 public:
  explicit LiveLine(std::string worker) : worker_(std::move(worker)) {}
  static constexpr size_t kMaxEvents = 4;  // Of at most 1 MiB each.

  const std::string& worker() const { return worker_; }

  // --- The reader's side. Errors name the worker. ---
  void Send(v1::LiveCommand command);  // The stream may attach later.
  // Waits for the worker's next event. A failure event becomes the status.
  // Errors: DeadlineExceeded; Cancelled  `cancelled` became true, or Close() was called;
  //         Unavailable  the stream ended; what the worker said.
  absl::StatusOr<v1::LiveEvent> Next(absl::Time deadline, absl::FunctionRef<bool()> cancelled);
  // Whether a later Next() reports a failure, or the early end of the stream.
  bool HasFailed();
  // Ends the stream.
  void Close();

  // --- The stream's side ---
  // `on_close` ends the stream from another thread; it is not called after Detach(). Returns false
  // if the line is closed or has a stream already.
  bool Attach(std::function<void()> on_close);
  // Nullopt: closed.
  std::optional<v1::LiveCommand> AwaitCommand(absl::FunctionRef<bool()> cancelled);
  bool Push(v1::LiveEvent event);  // False: closed.
  void Detach();                   // The stream is ending.

 private:
  const std::string worker_;
  absl::Mutex mu_;
  std::optional<v1::LiveCommand> command_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::LiveEvent> events_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_close_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_LINE_H_
