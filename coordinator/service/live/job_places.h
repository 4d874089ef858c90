// How many calls at a time may do one thing with a job. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_JOB_PLACES_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_JOB_PLACES_H_

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace tessera::coordinator {

class JobPlaces {
 public:
  explicit JobPlaces(int max_of_a_job) : max_of_a_job_(max_of_a_job) {}

  int max_of_a_job() const { return max_of_a_job_; }
  // False: the job has as many as may be.
  bool TryEnter(const JobId& job);
  // Waits for a place. Errors: DeadlineExceeded; Cancelled  `cancelled` became true.
  absl::Status Enter(const JobId& job, absl::Time deadline, absl::FunctionRef<bool()> cancelled);
  void Leave(const JobId& job);

 private:
  bool HasRoom(const JobId& job) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const int max_of_a_job_;
  absl::Mutex mu_;
  std::map<JobId, int> taken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_JOB_PLACES_H_
