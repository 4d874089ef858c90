// The trainer's own tensors in requests of saves and loads, and out of their replies.
#ifndef TESSERA_CLIENT_SESSION_TENSOR_CODEC_H_
#define TESSERA_CLIENT_SESSION_TENSOR_CODEC_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/save_spec.h"
#include "proto/checkpoint.pb.h"
#include "tessera/checkpoint.h"
#include "tessera/session.h"

namespace tessera {

void EncodeTensors(const std::vector<NamedTensor>& tensors, TensorValues values,
                   google::protobuf::RepeatedPtrField<v1::NamedTensor>* to);
// Errors: Internal  a dtype that nothing here has
absl::StatusOr<std::vector<NamedTensor>> DecodeTensors(
    const google::protobuf::RepeatedPtrField<v1::NamedTensor>& from);

// What the session's model has, where it says so (StateAccess::SetTrainerTensors). Rank 0's are
// saved. An error of the model's becomes the request's refusal, for all ranks.
void AddTrainerTensors(Session* session, v1::SaveRequest* request);
// A path that PlainPath refuses becomes the request's refusal, for all ranks.
void SetSpec(SaveSpec spec, v1::SaveRequest* request);
void AddTrainerTensors(Session* session, v1::LoadRequest* request);
// Gives the model what was loaded.
absl::Status TakeTrainerTensors(Session* session, const v1::LoadReply& reply);

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_TENSOR_CODEC_H_
