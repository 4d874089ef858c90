// Threads that run tasks in the order in which they come: as many threads as there are tasks, up
// to a limit; what comes beyond waits. Of threads without a task, a few stay for the next.
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_HANDLER_POOL_H_
#define TESSERA_COORDINATOR_SERVICE_HANDLER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tessera::coordinator {

class HandlerPool {
 public:
  static constexpr size_t kMaxIdle = 8;

  explicit HandlerPool(size_t max_threads) : max_threads_(max_threads) {}
  ~HandlerPool();  // Waits for all tasks.

  // Does not wait. Errors: ResourceExhausted  no thread can be made; the task does not run
  absl::Status Run(std::function<void()> task);

 private:
  using Threads = std::list<std::thread>;

  void Work(Threads::iterator self);
  // Null: the thread is not needed any more.
  std::function<void()> Next();

  const size_t max_threads_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  Threads threads_ ABSL_GUARDED_BY(mu_);
  size_t num_idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread ended_ ABSL_GUARDED_BY(mu_);  // The newest; each joins the one before it.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HANDLER_POOL_H_
