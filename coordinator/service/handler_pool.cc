#include "coordinator/service/handler_pool.h"

#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "base/start_thread.h"

namespace tessera::coordinator {

HandlerPool::~HandlerPool() {
  std::thread last;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    const auto is_empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return threads_.empty(); };
    mu_.Await(absl::Condition(&is_empty));
    last = std::move(ended_);
  }
  if (last.joinable()) last.join();
}

absl::Status HandlerPool::Run(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  // An idle thread is free only as far as no earlier task waits for it.
  if (tasks_.size() >= num_idle_ && threads_.size() < max_threads_) {
    const auto self = threads_.emplace(threads_.end());
    // The thread waits for mu_ first, so it finds itself in *self.
    absl::StatusOr<std::thread> thread = StartThread("a call", [this, self] { Work(self); });
    if (!thread.ok()) {
      threads_.erase(self);
      return thread.status();
    }
    *self = *std::move(thread);
  }
  tasks_.push_back(std::move(task));
  return absl::OkStatus();
}

std::function<void()> HandlerPool::Next() {
  absl::MutexLock lock(&mu_);
  ++num_idle_;
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopped_ || !tasks_.empty() || num_idle_ > kMaxIdle;
  };
  mu_.Await(absl::Condition(&is_over));
  --num_idle_;
  if (tasks_.empty()) return nullptr;
  std::function<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void HandlerPool::Work(Threads::iterator self) {
  while (std::function<void()> task = Next()) task();
  std::thread previous;
  {
    absl::MutexLock lock(&mu_);
    // A thread cannot join itself, so each joins the one that ended before it.
    previous = std::exchange(ended_, std::move(*self));
    threads_.erase(self);
  }
  if (previous.joinable()) previous.join();
}

}  // namespace tessera::coordinator
