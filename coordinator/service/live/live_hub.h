// All reads of jobs' states in progress: which streams are expected, how many reads a job has, and
// which one may hold and copy. Thread-safe.
//
// One read of a job at a time holds and copies, so that two reads cannot wait for each other on two
// workers. They then serve their clients concurrently.
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

  // A session id that cannot be guessed.
  static std::string NewSession();
  // Accepts the worker's stream of this session, until Forget.
  void Expect(const std::string& session, std::shared_ptr<LiveLine> line);
  void Forget(const std::string& session, const std::string& worker);
  // Null: no read expects it.
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
