// Watches a client's call from a thread of its own: ends it once the call's subject is gone, or once
// the client has kept the call waiting for too long.
//
//   Start ─► Wait: read from or write to the client ─► ... ─► Stop
//
// Wait and Stop are of the thread that serves the call.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_CLIENT_WATCH_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_CLIENT_WATCH_H_

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera::coordinator {

class ClientWatch {
 public:
  struct Options {
    std::string what;                     // As the thread is called in an error.
    absl::Duration patience;              // With the client.
    absl::Status silence;                 // Why the call ends where that is not enough.
    std::function<absl::Status()> check;  // Why the call ends; OK: it does not.
    std::function<void()> end;            // Wakes the serving thread; may be called repeatedly.
    std::function<void()> cancel;         // Ends a wait for the client.
    bool cancels_if_gone = false;         // Also where `check` fails during such a wait.
  };
  explicit ClientWatch(Options options) : options_(std::move(options)) {}
  ~ClientWatch() { (void)Stop(); }

  // Errors: ResourceExhausted  no thread.
  absl::Status Start();
  // Why it ended the call; OK: it did not, and will not any more.
  absl::Status Stop();

  // Runs `call`, which waits for the client, and returns what that returns.
  // Errors: why it ended the call.
  absl::StatusOr<bool> Wait(absl::FunctionRef<bool()> call);

  absl::Status reason() const;
  bool has_ended() const { return ended_.load(); }  // reason() is not OK.

 private:
  void Watch();
  void End(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  std::thread thread_;
  std::atomic<bool> ended_{false};
  mutable absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time waiting_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_CLIENT_WATCH_H_
