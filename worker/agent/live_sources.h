// States that clients fetch from this worker, between the sessions that make them and the calls
// that fetch them.
//
//   session   Add ─► LiveSource ◄─ Find, Enter   call: Next, Next, ...
//             AwaitEnd ◄──────────────── Leave
//             Remove, Close ─────────► cancels the call
//
// Thread-safe.
#ifndef TESSERA_WORKER_AGENT_LIVE_SOURCES_H_
#define TESSERA_WORKER_AGENT_LIVE_SOURCES_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/keeper/state_snapshot.h"

namespace tessera {

class LiveSource {
 public:
  // The snapshot has started.
  explicit LiveSource(std::shared_ptr<StateSnapshot> snapshot);

  // --- The session's side ---

  // Returns once the client has taken no piece for `lull`, or it has all, or `hurry` became true,
  // which is looked at often.
  void AwaitLull(absl::Duration lull, absl::FunctionRef<bool()> hurry);
  // Waits for the end of the fetch. Looks at `cancelled` now and then.
  // Errors: Cancelled  no client came, or it took no piece, for `client_timeout`; it went away;
  //                    `cancelled` became true
  //         as StateSnapshot::Next
  absl::Status AwaitEnd(absl::Duration client_timeout, absl::FunctionRef<bool()> cancelled);
  // Nobody fetches from now on.
  void Close();

  // --- The call's side ---

  // `cancel` ends the call, from another thread, until Leave(). False: it is fetched, or closed,
  // already.
  bool Enter(std::function<void()> cancel);
  absl::StatusOr<std::optional<StateSnapshot::Piece>> Next(StateSnapshot::Room room);
  void Leave(const absl::Status& status);

 private:
  const std::shared_ptr<StateSnapshot> snapshot_;
  absl::Mutex mu_;
  bool entered_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time taken_at_ ABSL_GUARDED_BY(mu_);  // A piece, last.
  std::function<void()> cancel_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

class LiveSources {
 public:
  void Add(const std::string& session, std::shared_ptr<LiveSource> source);
  void Remove(const std::string& session);
  // Null: there is none.
  std::shared_ptr<LiveSource> Find(const std::string& session) const;

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<LiveSource>> sources_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_LIVE_SOURCES_H_
