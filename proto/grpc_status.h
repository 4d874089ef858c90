// absl::Status <-> grpc::Status. The codes are the same numbers; messages pass unchanged.
#ifndef TESSERA_PROTO_GRPC_STATUS_H_
#define TESSERA_PROTO_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace tessera {

grpc::Status ToGrpcStatus(const absl::Status& status);
// A peer that went away in the middle of a stream reads "Unavailable", whatever gRPC calls it.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tessera

#endif  // TESSERA_PROTO_GRPC_STATUS_H_
