// Checks the spec of a job. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_CORE_JOB_SPEC_H_
#define TESSERA_COORDINATOR_CORE_JOB_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

// A checked spec with its layout digest.
// Errors: InvalidArgument  no worker can host it: see ValidateJobConfig, ValidateModel and the
//                          layout
absl::StatusOr<JobSpecPtr> MakeJobSpec(ModelSpec model, JobConfig config, int32_t submitting_rank);

// Sets the memory that the job needs, from its model and config.
// Errors: InvalidArgument  as MakeJobSpec
absl::Status SetMemoryNeeds(JobSpec* spec);

// Errors: InvalidArgument  they differ (names both submitters and the first parameter or config
//                          field that differs); in collective_timeout they may
absl::Status CompareJobSpecs(const JobSpec& a, const JobSpec& b);

// Whether each worker has all shards of the job, so that any one of them is enough: all units are
// hybrid, and each group of shard_group_size ranks has a worker of its own.
bool EachWorkerHasAll(const JobSpec& spec, const std::vector<RankPlacement>& placements);

// The memory that the spec takes, approximately.
int64_t SizeBytes(const JobSpec& spec);

// "rank 3", or "the caller" for -1.
std::string SubmitterName(int32_t submitting_rank);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_SPEC_H_
