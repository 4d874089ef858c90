// The sessions that a relay serves, each with a thread of its own. Thread-safe.
//
// `Session` has: absl::Status Start(), which makes its thread; Cancel(), thread-safe; done(),
// whether the thread is at its end; and a destructor that waits for it.
#ifndef TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_
#define TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_

#include <cstddef>
#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

template <typename Session>
class RelaySessions {
 public:
  explicit RelaySessions(size_t max = 16) : max_(max) {}

  // Starts it, unless Stop() was called: then nothing happens. `what`: what the clients of the
  // other sessions do, for the error.
  // Errors: ResourceExhausted  as many as may be are served; Start's.
  absl::Status Serve(std::unique_ptr<Session> session, absl::string_view what) {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    sessions_.remove_if([](const std::unique_ptr<Session>& other) { return other->done(); });
    if (sessions_.size() >= max_)
      return absl::ResourceExhaustedError(absl::StrCat(sessions_.size(), " clients ", what));
    const absl::Status status = session->Start();
    if (status.ok()) sessions_.push_back(std::move(session));
    return status;
  }
  // Ends all of them, and waits.
  void Stop() {
    std::list<std::unique_ptr<Session>> sessions;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      sessions.swap(sessions_);
    }
    for (const auto& session : sessions) session->Cancel();
  }

 private:
  const size_t max_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::unique_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_
