#include <utility>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "client/checkpoint/load_request.h"
#include "client/session/state_access.h"
#include "client/session/tensor_codec.h"
#include "proto/checkpoint.pb.h"
#include "tessera/stored_model.h"

namespace tessera {

absl::StatusOr<LoadReport> LoadModel(Session* session, const std::string& path,
                                     const LoadOptions& options) {
  v1::LoadRequest request;
  // Sent as text. A path that is changed by it is refused where it is opened.
  request.set_path(PrintableUtf8(path));
  request.set_strict(options.strict);
  EncodeNames(options.names, &request);
  AddTrainerTensors(session, &request);
  ASSIGN_OR_RETURN(const std::string bytes,
                   StateAccess(session).CallToWrite(OpKind::kLoad, request.SerializeAsString()));
  v1::LoadReply reply;
  if (!reply.ParseFromString(bytes)) return absl::InternalError("the load's reply is malformed");
  RETURN_IF_ERROR(TakeTrainerTensors(session, reply));
  return LoadReport{{reply.missing().begin(), reply.missing().end()},
                    {reply.unexpected().begin(), reply.unexpected().end()}};
}

}  // namespace tessera
