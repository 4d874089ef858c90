#include "checkpoint/storage/s3/parallel_calls.h"

#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_patience.h"

namespace tessera::s3 {

void ParallelCalls::AwaitAtMost(int most) {
  const auto has_room = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_running_ <= most; };
  {
    // Each call ends by its own deadline.
    absl::MutexLock lock(&mu_, absl::Condition(&has_room));
  }
  for (auto it = running_.begin(); it != running_.end();) {
    bool has_ended = false;
    {
      absl::MutexLock lock(&mu_);
      has_ended = it->has_ended;
    }
    if (has_ended) it->thread.join();
    it = has_ended ? running_.erase(it) : std::next(it);
  }
}

absl::Status ParallelCalls::Add(std::function<absl::Status()> call) {
  AwaitAtMost(most_ - 1);
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(status_);
    ++num_running_;
  }
  Running& running = running_.emplace_back();
  absl::StatusOr<std::thread> thread = StartThread(
      "a request to s3://",
      [this, &running, call = std::move(call), deadline = StoragePatience::Deadline()]() mutable {
        // The patience of the thread that called Add: a thread has its own.
        const StoragePatience patience(deadline);
        const absl::Status status = call();
        call = nullptr;  // With the memory that it holds.
        absl::MutexLock lock(&mu_);
        status_.Update(status);
        running.has_ended = true;
        --num_running_;
      });
  if (thread.ok()) {
    running.thread = *std::move(thread);
    return absl::OkStatus();
  }
  // Without a thread nothing counts it down again.
  running_.pop_back();
  absl::MutexLock lock(&mu_);
  --num_running_;
  status_.Update(thread.status());
  return thread.status();
}

absl::Status ParallelCalls::Await() {
  AwaitAtMost(0);
  absl::MutexLock lock(&mu_);
  return status_;
}

}  // namespace tessera::s3
