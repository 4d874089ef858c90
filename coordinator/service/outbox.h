// Commands on their way to one worker's stream. Thread-safe.
//
//   core effects ──Push──► [ c1 c2 c3 ] ──Pop──► the stream's writer thread
//
// Bounded: a worker that does not read loses its stream, and gets what it missed when it connects
// again.
#ifndef TESSERA_COORDINATOR_SERVICE_OUTBOX_H_
#define TESSERA_COORDINATOR_SERVICE_OUTBOX_H_

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/effects.h"

namespace tessera::coordinator {

class Outbox {
 public:
  // `on_close` ends the stream that reads here; called once, by Close, unless Detach came first.
  explicit Outbox(std::function<void()> on_close) : on_close_(std::move(on_close)) {}

  // Dropped where the outbox is closed.
  void Push(Command command);
  // Waits for a command; nullopt: closed.
  std::optional<Command> Pop();
  void Close();
  // As Close, without on_close: the stream is ending by itself.
  void Detach();

 private:
  static constexpr size_t kMaxCommands = 1 << 16;

  absl::Mutex mu_;
  std::deque<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> on_close_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_OUTBOX_H_
