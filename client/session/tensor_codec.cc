#include "client/session/tensor_codec.h"

#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/storage/storage_path.h"
#include "client/session/state_access.h"
#include "job/save_spec_codec.h"

namespace tessera {

void EncodeTensors(const std::vector<NamedTensor>& tensors, TensorValues values,
                   google::protobuf::RepeatedPtrField<v1::NamedTensor>* to) {
  for (const NamedTensor& tensor : tensors) {
    v1::NamedTensor* encoded = to->Add();
    encoded->set_name(tensor.name);
    encoded->set_dtype(std::string(Name(tensor.dtype)));
    for (const int64_t dim : tensor.shape) encoded->add_shape(dim);
    if (values == TensorValues::kIncluded) encoded->set_values(tensor.values);
  }
}

absl::StatusOr<std::vector<NamedTensor>> DecodeTensors(
    const google::protobuf::RepeatedPtrField<v1::NamedTensor>& from) {
  std::vector<NamedTensor> tensors;
  for (const v1::NamedTensor& encoded : from) {
    const std::optional<StoredDType> dtype = ParseStoredDType(encoded.dtype());
    if (!dtype.has_value()) return absl::InternalError("the load's reply has an unknown dtype");
    tensors.emplace_back(encoded.name(), *dtype,
                         std::vector<int64_t>(encoded.shape().begin(), encoded.shape().end()),
                         encoded.values());
  }
  return tensors;
}

void AddTrainerTensors(Session* session, v1::SaveRequest* request) {
  const TrainerTensors* own = StateAccess(session).trainer_tensors();
  if (own == nullptr) return;
  const bool leads = session->rank() == 0;
  // Values are large, and only rank 0's are saved.
  const absl::StatusOr<std::vector<NamedTensor>> tensors =
      own->get(leads ? TensorValues::kIncluded : TensorValues::kOmitted);
  if (!tensors.ok()) {
    // Sent instead of failing here: all ranks reach the operation, and get the refusal together.
    request->set_refusal(tensors.status().ToString());
  } else if (leads) {
    EncodeTensors(*tensors, TensorValues::kIncluded, request->mutable_buffers());
  }
}

void SetSpec(SaveSpec spec, v1::SaveRequest* request) {
  if (const absl::Status status = PlainPath(spec.path).status(); !status.ok()) {
    spec.path.clear();  // It may not fit into a message.
    request->set_refusal(std::string(status.message()));
  }
  *request->mutable_spec() = EncodeSaveSpec(spec);
}

void AddTrainerTensors(Session* session, v1::LoadRequest* request) {
  const TrainerTensors* own = StateAccess(session).trainer_tensors();
  if (own == nullptr) return;
  const absl::StatusOr<std::vector<NamedTensor>> tensors = own->get(TensorValues::kOmitted);
  if (tensors.ok()) {
    EncodeTensors(*tensors, TensorValues::kOmitted, request->mutable_buffers());
  } else {
    // As in a save: all ranks reach the operation, and get the refusal together.
    request->set_refusal(std::string(tensors.status().message()));
  }
}

absl::Status TakeTrainerTensors(Session* session, const v1::LoadReply& reply) {
  const TrainerTensors* own = StateAccess(session).trainer_tensors();
  if (own == nullptr || reply.buffers().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<NamedTensor> tensors, DecodeTensors(reply.buffers()));
  return own->take(tensors);
}

}  // namespace tessera
