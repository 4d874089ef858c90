// The layout of a job's model: the one way from config to layout, so that coordinator, workers and
// trainers cut alike. Pure; thread-safe.
#ifndef TESSERA_JOB_JOB_LAYOUT_H_
#define TESSERA_JOB_JOB_LAYOUT_H_

#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/model_layout.h"

namespace tessera {

// Errors: InvalidArgument  as ModelLayout::Create.
absl::StatusOr<ModelLayout> LayOut(const ModelSpec& model, const JobConfig& config);

}  // namespace tessera

#endif  // TESSERA_JOB_JOB_LAYOUT_H_
