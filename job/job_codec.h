// JobConfig and ModelSpec <-> their wire messages, as they travel and as the journal keeps them.
// Pure; thread-safe. What a decoded model or config means is not checked here: see
// ValidateJobConfig, ValidateModel and the coordinator's MakeJobSpec.
#ifndef TESSERA_JOB_JOB_CODEC_H_
#define TESSERA_JOB_JOB_CODEC_H_

#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/tensor_spec.h"
#include "proto/types.pb.h"

namespace tessera {

// Errors: InvalidArgument  an unknown or missing enum value, a number or a name beyond the limits
//                          of field_limits.h; names unit and parameter, or the config's field.
absl::StatusOr<ModelSpec> DecodeModel(const v1::ModelSpec& model);
absl::StatusOr<JobConfig> DecodeJobConfig(const v1::JobConfig& config);
absl::StatusOr<DType> DecodeDType(v1::DType dtype);

v1::ModelSpec EncodeModel(const ModelSpec& model);
v1::JobConfig EncodeJobConfig(const JobConfig& config);
v1::DType EncodeDType(DType dtype);
v1::Strategy EncodeStrategy(Strategy strategy);
// Of one step, without parameters' names. Nothing is checked.
HyperParameters DecodeHyperParameters(const v1::ParamGroup& numbers);
void EncodeHyperParameters(const HyperParameters& numbers, v1::ParamGroup* encoded);

}  // namespace tessera

#endif  // TESSERA_JOB_JOB_CODEC_H_
