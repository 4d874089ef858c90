// The options of the coordinator's core.
#ifndef TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
#define TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "coordinator/core/rank_assigner.h"

namespace tessera::coordinator {

struct CoordinatorOptions {
  absl::Duration worker_timeout = absl::Seconds(10);
  // A live worker that has not prepared an epoch after this time has failed it. The job avoids the
  // worker until it answers or restarts, or ten times this time has passed.
  absl::Duration prepare_timeout = absl::Minutes(1);
  // The delay before the third consecutive epoch without a step. It doubles with each further one,
  // up to 10 s.
  absl::Duration restart_delay = absl::Milliseconds(100);
  // How long a job that is bound to no worker avoids one that refused to hold it.
  absl::Duration refusal_pause = absl::Seconds(10);
  // A rank that others have waited for at an operation for this long is named; 0: none is.
  absl::Duration hang_after = absl::Seconds(30);
  bool end_hung_epochs = false;  // And its epoch ends.
  PlacementRule placement = PlacementRule::kOneWorkerFirst;
  int64_t request_capacity = 4096;
  int64_t max_jobs = 1000;
  // Limits of one owner: jobs, and memory for models (SizeBytes of job_spec.h). The last one is for
  // the models of all owners. None of these limits operators.
  int64_t max_jobs_of_owner = 100;
  int64_t max_model_bytes_of_owner = int64_t{64} << 20;
  int64_t max_model_bytes = int64_t{192} << 20;
  int64_t max_workers = 10000;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
