// What a job's config says of its memory, for a plan (layout/memory_plan.h). Pure; thread-safe.
#ifndef TESSERA_JOB_MEMORY_OPTIONS_H_
#define TESSERA_JOB_MEMORY_OPTIONS_H_

#include "job/job_config.h"
#include "layout/memory_plan.h"

namespace tessera {

// For ranks that are all on one host. The config is one that ValidateJobConfig takes.
MemoryOptions MemoryOptionsOf(const JobConfig& config);

}  // namespace tessera

#endif  // TESSERA_JOB_MEMORY_OPTIONS_H_
