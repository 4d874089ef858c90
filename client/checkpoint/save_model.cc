#include "tessera/save_model.h"

#include "client/session/state_access.h"
#include "client/session/tensor_codec.h"
#include "job/job_codec.h"
#include "proto/checkpoint.pb.h"

namespace tessera {

absl::Status SaveModel(Session* session, const std::string& path, const SaveModelOptions& options) {
  v1::SaveRequest request;
  SetPath(path, &request);
  request.set_max_file_bytes(options.max_file_bytes);
  if (options.dtype.has_value()) request.set_save_dtype(EncodeDType(*options.dtype));
  AddTrainerTensors(session, &request);
  // All ranks reach the save, whatever is wrong with their request.
  return StateAccess(session).Call(OpKind::kSave, request.SerializeAsString()).status();
}

}  // namespace tessera
