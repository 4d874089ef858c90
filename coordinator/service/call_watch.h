// Ends calls whose client takes too long to send a request or to take a reply; and, where the
// process has too much memory, the one of them that does so longest, until it has less. So who
// sends too much ends before the process does, and gRPC, which takes in a message of any size
// before it looks at its limit, is no danger. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_CALL_WATCH_H_
#define TESSERA_COORDINATOR_SERVICE_CALL_WATCH_H_

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"

namespace tessera::coordinator {

// Of this process; 0: it cannot be read.
int64_t ResidentBytes();

class CallWatch {
 public:
  // `has_too_much_memory` is asked, and `on_look` called, every few milliseconds while a
  // call sends, takes or waits for its turn.
  CallWatch(std::function<bool()> has_too_much_memory, std::function<void()> on_look);
  ~CallWatch();

  // While a call sends or takes, or waits for that. `context` outlives this.
  class Span {
   public:
    // `late`: what the client is told after the deadline. `may_be_large`: it may have to end
    // earlier.
    Span(CallWatch* watch, grpc::ServerContextBase* context, absl::Time deadline, absl::Status late,
         bool may_be_large);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

    // Not OK: the call was ended, with this.
    absl::Status Ended() const;

   private:
    friend class CallWatch;

    CallWatch* const watch_;
    grpc::ServerContextBase* const context_;
    const absl::Time deadline_;
    const absl::Time began_at_;
    const absl::Status late_;
    const bool may_be_large_;
    absl::Status ended_ ABSL_GUARDED_BY(watch_->mu_);
    std::list<Span*>::iterator place_;
  };

 private:
  void Run();
  void EndLateOnes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of those that may be large; null: none takes long.
  Span* OldestSlow() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  static void End(Span* span, const absl::Status& status);

  const std::function<bool()> has_too_much_memory_;
  const std::function<void()> on_look_;
  mutable absl::Mutex mu_;
  std::list<Span*> spans_ ABSL_GUARDED_BY(mu_);  // In the order in which they began.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_CALL_WATCH_H_
