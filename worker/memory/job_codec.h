// JobConfig and ModelSpec <-> their wire messages. Pure; what decodes is not yet validated.
#ifndef TESSERA_WORKER_MEMORY_JOB_CODEC_H_
#define TESSERA_WORKER_MEMORY_JOB_CODEC_H_

#include "absl/status/statusor.h"
#include "layout/tensor_spec.h"
#include "proto/types.pb.h"
#include "worker/memory/job_config.h"

namespace tessera {

v1::ModelSpec EncodeModel(const ModelSpec& model);
v1::JobConfig EncodeJobConfig(const JobConfig& config);
v1::DType EncodeDType(DType dtype);
// Errors: InvalidArgument  an enum value that this version does not know.
absl::StatusOr<ModelSpec> DecodeModel(const v1::ModelSpec& model);
absl::StatusOr<JobConfig> DecodeJobConfig(const v1::JobConfig& config);

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMORY_JOB_CODEC_H_
