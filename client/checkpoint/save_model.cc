#include "client/session/state_access.h"
#include "client/session/tensor_codec.h"
#include "proto/checkpoint.pb.h"
#include "tessera/stored_model.h"

namespace tessera {

absl::Status SaveModel(Session* session, const std::string& path, const SaveOptions& options) {
  v1::SaveRequest request;
  SetSpec({SaveContent::kModel, path, options, /*root=*/""}, &request);
  AddTrainerTensors(session, &request);
  // All ranks reach the save, whatever is wrong with their request.
  return StateAccess(session).Call(OpKind::kSave, request.SerializeAsString()).status();
}

}  // namespace tessera
