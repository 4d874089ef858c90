// Model specs and job configs between the wire (and the journal) and the core. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SPEC_CODEC_H_
#define TESSERA_COORDINATOR_SERVICE_SPEC_CODEC_H_

#include "absl/status/statusor.h"
#include "coordinator/core/types.h"
#include "proto/types.pb.h"

namespace tessera::coordinator {

// Errors: InvalidArgument  an unknown or missing enum value, too many parameters, a name that is
//                          too long; names unit and parameter. What the model means is checked by
//                          MakeJobSpec.
absl::StatusOr<ModelSpec> DecodeModel(const v1::ModelSpec& model);
absl::StatusOr<JobConfig> DecodeConfig(const v1::JobConfig& config);
absl::StatusOr<DType> DecodeDType(v1::DType dtype);

v1::ModelSpec EncodeModel(const ModelSpec& model);
v1::JobConfig EncodeConfig(const JobConfig& config);
v1::DType EncodeDType(DType dtype);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SPEC_CODEC_H_
