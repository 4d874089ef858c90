#include "client/cli/channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpc/support/log.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/grpc_status.h"

namespace tessera::cli {
namespace {

// A list of jobs holds every model's parameters.
constexpr int kMaxReplyBytes = 256 << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  // A live view must not wait minutes for a server that came back.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  SetKeepalive(endpoint.keepalive, &arguments);
  return tessera::OpenChannel({endpoint.address, endpoint.tls, endpoint.insecure_connect},
                              std::move(arguments));
}

void SetDeadline(const Endpoint& endpoint, grpc::ClientContext* context) {
  context->set_deadline(GrpcDeadline(SteadyNow() + endpoint.timeout));
}

absl::Status CallStatus(const grpc::Status& status, const char* who, const Endpoint& endpoint) {
  return Annotate(FromGrpcStatus(status), absl::StrCat(who, " ", endpoint.address));
}

void SilenceGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace tessera::cli
