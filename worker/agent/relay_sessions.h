// Sessions of calls with this worker (coordinator/service/live/worker_session.h has the other end),
// each with a thread, a stream and a connection of its own, so that a slow one delays neither another
// session nor the worker's commands. Thread-safe.
#ifndef TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_
#define TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

class RelaySession {
 public:
  virtual ~RelaySession() = default;
  // On the session's thread. Its error, if it has one, is logged.
  virtual absl::Status Run() = 0;
  virtual void Cancel() = 0;  // Ends Run(), from another thread.
};

class RelaySessions {
 public:
  ~RelaySessions() { Stop(); }

  // Returns at once. If no thread can be created, or the limit of sessions is reached, the session
  // is not opened, and the coordinator's wait for it ends. After Stop() nothing happens.
  // `what`: for the log and for the thread, "a put"; `job_id`: for the log.
  void Serve(std::unique_ptr<RelaySession> session, absl::string_view what, std::string job_id);
  // Ends all of them, and waits.
  void Stop();

 private:
  static constexpr size_t kMaxSessions = 16;
  struct Running {
    ~Running();
    std::unique_ptr<RelaySession> session;
    std::atomic<bool> done{false};
    std::thread thread;
  };
  absl::Status Start(std::unique_ptr<RelaySession> session, const std::string& what,
                     const std::string& job_id);

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::unique_ptr<Running>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_RELAY_SESSIONS_H_
