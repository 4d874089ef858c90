#include "worker/agent/relay_sessions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace tessera {

RelaySessions::Running::~Running() {
  if (thread.joinable()) thread.join();
}

absl::Status RelaySessions::Start(std::unique_ptr<RelaySession> session, const std::string& what,
                                  const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::OkStatus();
  sessions_.remove_if([](const std::unique_ptr<Running>& other) { return other->done.load(); });
  if (sessions_.size() >= kMaxSessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this worker serves ", sessions_.size(), " sessions already"));
  }
  auto running = std::make_unique<Running>();
  running->session = std::move(session);
  ASSIGN_OR_RETURN(running->thread, StartThread(what, [running = running.get(), what, job_id] {
                     const absl::Status status = running->session->Run();
                     if (!status.ok())
                       TESSERA_LOG(INFO, "job {}: {}: {}", job_id, what, status.ToString());
                     // Last: a session that is seen as done is destroyed.
                     running->done.store(true);
                   }));
  sessions_.push_back(std::move(running));
  return absl::OkStatus();
}

void RelaySessions::Serve(std::unique_ptr<RelaySession> session, absl::string_view what,
                          std::string job_id) {
  const std::string name(what);
  const absl::Status status = Start(std::move(session), name, job_id);
  if (!status.ok())
    TESSERA_LOG(WARNING, "job {}: {} is not served: {}", job_id, name, status.ToString());
}

void RelaySessions::Stop() {
  std::list<std::unique_ptr<Running>> sessions;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    sessions.swap(sessions_);
  }
  // Outside the lock. Their threads are joined as the list goes.
  for (const auto& running : sessions) running->session->Cancel();
}

}  // namespace tessera
