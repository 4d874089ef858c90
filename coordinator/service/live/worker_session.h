// Sessions of clients' calls with workers: a call opens a line to each worker that it needs, tells
// these workers the session's name, and each worker opens a stream and shows that name.
//
//   call    WorkerSession::Open ── Expect ──► SessionHub ◄── Find ── RelayService   worker's stream
//             └── tells the worker (ServeState, StagePut) ──────────►  dials, hello(session)
//
// The same for reads of live state, for puts and for hand-overs. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_SESSION_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_SESSION_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "coordinator/service/live/worker_line.h"
#include "proto/live_put.pb.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

// A session's name, which cannot be guessed.
std::string NewSessionName();

// Which streams are expected.
template <typename Command, typename Event>
class SessionHub {
 public:
  using Line = WorkerLine<Command, Event>;

  // Accepts the worker's stream of this session, until Forget.
  void Expect(const std::string& session, std::shared_ptr<Line> line) {
    absl::MutexLock lock(&mu_);
    const std::pair<std::string, std::string> key(session, line->worker());
    lines_[key] = std::move(line);
  }
  void Forget(const std::string& session, const std::string& worker) {
    absl::MutexLock lock(&mu_);
    lines_.erase({session, worker});
  }
  // Null: no call expects it.
  std::shared_ptr<Line> Find(const std::string& session, const std::string& worker) {
    absl::MutexLock lock(&mu_);
    const auto it = lines_.find({session, worker});
    return it == lines_.end() ? nullptr : it->second;
  }

 private:
  absl::Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Line>> lines_ ABSL_GUARDED_BY(mu_);
};

// One call's.
template <typename Command, typename Event>
class WorkerSession {
 public:
  using Hub = SessionHub<Command, Event>;
  using Lines = std::vector<std::shared_ptr<WorkerLine<Command, Event>>>;

  explicit WorkerSession(Hub* hub) : hub_(hub) {}
  ~WorkerSession() { Close(); }

  // Opens a line to each of the workers, under a new name. `tell` sends a worker the command to
  // open its stream; false: it is not connected. Requires that none is open.
  // Errors: Unavailable  a worker is not connected (names it)
  absl::Status Open(const std::vector<WorkerId>& workers,
                    absl::FunctionRef<bool(const WorkerId&, const std::string& session)> tell) {
    const std::string name = NewSessionName();
    Lines lines;
    for (const WorkerId& worker : workers)
      lines.push_back(std::make_shared<typename Hub::Line>(worker.value()));
    {
      absl::MutexLock lock(&mu_);
      name_ = name;
      lines_ = lines;
    }
    for (size_t i = 0; i < workers.size(); ++i) {
      hub_->Expect(name, lines[i]);
      if (tell(workers[i], name)) continue;
      return absl::UnavailableError(
          absl::StrCat("worker '", workers[i].value(), "' is not connected"));
    }
    return absl::OkStatus();
  }
  // In the order of the workers; empty: it is closed.
  Lines lines() const {
    absl::MutexLock lock(&mu_);
    return lines_;
  }
  std::string name() const {
    absl::MutexLock lock(&mu_);
    return name_;
  }
  // Ends all streams. May be called by another thread.
  void Close() {
    Lines lines;
    std::string name;
    {
      absl::MutexLock lock(&mu_);
      lines.swap(lines_);
      name = name_;
    }
    for (const auto& line : lines) {
      hub_->Forget(name, line->worker());
      line->Close();
    }
  }

 private:
  Hub* const hub_;
  mutable absl::Mutex mu_;
  std::string name_ ABSL_GUARDED_BY(mu_);
  Lines lines_ ABSL_GUARDED_BY(mu_);
};

// Of reads and hand-overs, and of puts.
using LiveLine = WorkerLine<v1::LiveCommand, v1::LiveEvent>;
using LiveSessions = SessionHub<v1::LiveCommand, v1::LiveEvent>;
using LiveSession = WorkerSession<v1::LiveCommand, v1::LiveEvent>;
using PutLine = WorkerLine<v1::PutCommand, v1::PutEvent>;
using PutSessions = SessionHub<v1::PutCommand, v1::PutEvent>;
using PutSession = WorkerSession<v1::PutCommand, v1::PutEvent>;

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_WORKER_SESSION_H_
