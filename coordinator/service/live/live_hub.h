// All readings of jobs' states that are under way: whose streams are awaited, how many there are of
// a job, and whose turn it is to hold and copy. Thread-safe.
//
// Of a job one reading at a time holds and copies, so that two cannot wait for each other on two
// workers; what they serve they serve side by side.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_HUB_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_HUB_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "coordinator/service/live/live_line.h"

namespace tessera::coordinator {

class LiveHub {
 public:
  static constexpr int kMaxReadingsOfAJob = 4;

  // Errors: ResourceExhausted  there are kMaxReadingsOfAJob of it already.
  absl::Status Enter(const JobId& job);
  void Leave(const JobId& job);

  // Waits for the job's turn. Errors: DeadlineExceeded; Cancelled  `cancelled` became true.
  absl::Status TakeTurn(const JobId& job, absl::Time deadline, absl::FunctionRef<bool()> cancelled);
  void EndTurn(const JobId& job);

  // A session that nobody can guess.
  static std::string NewSession();
  // From now on the worker's stream of this session is let in, until Forget.
  void Expect(const std::string& session, std::shared_ptr<LiveLine> line);
  void Forget(const std::string& session, const std::string& worker);
  // Null: nobody waits for it.
  std::shared_ptr<LiveLine> Find(const std::string& session, const std::string& worker);

 private:
  absl::Mutex mu_;
  std::map<JobId, int> readings_ ABSL_GUARDED_BY(mu_);
  std::set<JobId> turns_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, std::string>, std::shared_ptr<LiveLine>> lines_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_HUB_H_
