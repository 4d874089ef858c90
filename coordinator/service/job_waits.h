// Calls that wait until a job changes. A change wakes those that wait for this job, and nobody
// looks at the others: thousands that wait cost those who train nothing.
//
//   JobWaits::Wait wait(&waits, {job});
//   ... look, under the lock that changes are made under ...
//   wait.Await(timeout);                  a change since the look is not missed
//
// Thread-safe; a Wait is one thread's.
#ifndef TESSERA_COORDINATOR_SERVICE_JOB_WAITS_H_
#define TESSERA_COORDINATOR_SERVICE_JOB_WAITS_H_

#include <map>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/steady_time.h"

namespace tessera::coordinator {

class JobWaits {
 public:
  class Wait {
   public:
    // `waits` outlives this.
    Wait(JobWaits* waits, std::vector<JobId> jobs);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    // Returns once one of the jobs has changed since this was made, or since the last change that
    // this returned for. False: none has, in `timeout`.
    bool Await(absl::Duration timeout);

   private:
    friend class JobWaits;
    void Wake();

    JobWaits* const waits_;
    const std::vector<JobId> jobs_;
    absl::Mutex mu_;
    bool has_changed_ ABSL_GUARDED_BY(mu_) = false;
  };

  void WakeThoseOf(const JobId& job);
  void WakeAll();

 private:
  absl::Mutex mu_;
  std::map<JobId, std::set<Wait*>> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_JOB_WAITS_H_
