// gRPC channels to an Endpoint, with the limits and the error texts that all clients here share.
#ifndef TESSERA_CLIENT_CLI_CHANNEL_H_
#define TESSERA_CLIENT_CLI_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace tessera::cli {

// Connects at the first call, not here.
// Errors: as OpenChannel of net/credentials.h.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint);

void SetDeadline(const Endpoint& endpoint, grpc::ClientContext* context);

// Returns the call's status, with "`who` ADDRESS: " before its message.
absl::Status CallStatus(const grpc::Status& status, const char* who, const Endpoint& endpoint);

// For main: gRPC itself writes nothing to standard error any more, so that errors are one line.
void SilenceGrpcLog();

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CHANNEL_H_
