// What a coordinator's core can be told to do otherwise.
#ifndef TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
#define TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "coordinator/core/rank_assigner.h"

namespace tessera::coordinator {

struct CoordinatorOptions {
  absl::Duration worker_timeout = absl::Seconds(10);
  // A worker that lives but has not prepared an epoch after this long has failed it: the job does
  // without it until it answers, starts again, or ten times as long has passed.
  absl::Duration prepare_timeout = absl::Minutes(1);
  // The pause before the third epoch in a row without a step; each further one is twice as long, up
  // to 10 s.
  absl::Duration restart_delay = absl::Milliseconds(100);
  // A worker that cannot hold a job, which is bound to none yet, is not tried again for so long.
  absl::Duration refusal_pause = absl::Seconds(10);
  PlacementRule placement = PlacementRule::kOneWorkerFirst;
  int64_t request_capacity = 4096;
  int64_t max_jobs = 1000;
  // Of jobs of one owner, and of what models take of memory (SizeBytes of job_spec.h): of his jobs,
  // and of all. Operators create jobs whatever these are.
  int64_t max_jobs_of_owner = 100;
  int64_t max_model_bytes_of_owner = int64_t{64} << 20;
  int64_t max_model_bytes = int64_t{192} << 20;
  int64_t max_workers = 10000;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_COORDINATOR_OPTIONS_H_
