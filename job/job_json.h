// A model and a job's config as JSON, for callers of other languages; and a layout as JSON.
//
// The form is protobuf's of proto/types.proto's ModelSpec and JobConfig, with the names of the
// file. What is left out of a config or of its param groups has its default (job_config.h); of a
// parameter, that it is fp32 and requires a gradient. Unknown keys are errors. Pure; thread-safe.
#ifndef TESSERA_JOB_JOB_JSON_H_
#define TESSERA_JOB_JOB_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "layout/tensor_spec.h"

namespace tessera {

// Errors: InvalidArgument  not JSON, an unknown key or a value of another type, named; what
//                          DecodeModel and DecodeJobConfig refuse. What they mean is not checked.
absl::StatusOr<ModelSpec> ParseModelJson(absl::string_view json);
absl::StatusOr<JobConfig> ParseJobConfigJson(absl::string_view json);

// {"world_size": 2, "units": [{"name": "root", "dtype": "fp32", "strategy": ..., "size_elements": 96,
//   "shard_elements": 48, "num_shards": 2, "parameters": [{"name": "w", "shape": [5, 8],
//   "offset_elements": 0, "numel": 40, "requires_grad": true}, ...],
//   "aliases": {"tied": "w"}}, ...]}
std::string LayoutJson(const ModelLayout& layout);

}  // namespace tessera

#endif  // TESSERA_JOB_JOB_JSON_H_
