#include "coordinator/service/live/client_watch.h"

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);

}  // namespace

absl::Status ClientWatch::Start() {
  ASSIGN_OR_RETURN(thread_, StartThread(options_.what, [this] { Watch(); }));
  return absl::OkStatus();
}

absl::Status ClientWatch::Stop() {
  absl::Status reason;
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
    reason = reason_;
  }
  // Without the lock, which the thread needs to see done_.
  if (thread_.joinable()) thread_.join();
  return reason;
}

absl::StatusOr<bool> ClientWatch::Wait(absl::FunctionRef<bool()> call) {
  {
    absl::MutexLock lock(&mu_);
    if (!reason_.ok()) return reason_;
    waiting_since_ = SteadyNow();
  }
  const bool result = call();
  absl::MutexLock lock(&mu_);
  waiting_since_ = absl::InfiniteFuture();
  return result;
}

absl::Status ClientWatch::reason() const {
  absl::MutexLock lock(&mu_);
  return reason_;
}

void ClientWatch::Watch() {
  absl::MutexLock lock(&mu_);
  while (!AwaitWithTimeout(&mu_, absl::Condition(&done_), kWatchInterval)) {
    const absl::Status gone = options_.check();
    if (!gone.ok()) End(gone);
    const bool is_silent = SteadyNow() - waiting_since_ > options_.patience;
    if (is_silent) End(options_.silence);
    const bool waits = waiting_since_ != absl::InfiniteFuture();
    // A read or write of gRPC that waits for the client returns only if the call is cancelled.
    if (is_silent || (waits && options_.cancels_if_gone && !gone.ok())) options_.cancel();
  }
}

void ClientWatch::End(const absl::Status& reason) {
  // The first reason stays: what follows is mostly its consequence.
  if (reason_.ok()) reason_ = reason;
  ended_.store(true);
  // Each time, not only the first: the call may have opened its session since.
  options_.end();
}

}  // namespace tessera::coordinator
