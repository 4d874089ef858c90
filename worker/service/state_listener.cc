#include "worker/service/state_listener.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/address.h"
#include "net/credentials.h"
#include "net/listen_failure.h"
#include "net/server_connections.h"
#include "worker/service/live_fetch_service.h"

namespace tessera {
namespace {

class GrpcStateListener : public StateListener {
 public:
  explicit GrpcStateListener(LiveSources* sources) : service_(sources) {}
  ~GrpcStateListener() override {
    // At once: calls that are under way are cancelled.
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(SteadyNow()));
  }

  absl::Status Listen(const std::string& text, const ServerAddress& address,
                      std::shared_ptr<grpc::ServerCredentials> credentials) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(text, std::move(credentials), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two on one port is a mistake.
    SetKeepalive(&builder);
    ServerConnections::Limit(&builder, ServerConnections::Requests::kSmall);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    // gRPC does not say why it could not listen.
    if (server_ == nullptr || port == 0) return DiagnoseListenFailure(address, text);
    const bool v6 = absl::StrContains(address.host, ':');
    address_ =
        v6 ? absl::StrCat("[", address.host, "]:", port) : absl::StrCat(address.host, ":", port);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  LiveFetchService service_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateListener>> StateListener::Start(const std::string& address,
                                                                    const TlsFiles& tls,
                                                                    bool insecure_listen,
                                                                    LiveSources* sources) {
  ASSIGN_OR_RETURN(const ServerAddress parsed, ParseServerAddress(address));
  // Such an address would tell clients nothing.
  if (parsed.reach == Reach::kUnix || parsed.host == "0.0.0.0" || parsed.host == "::") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address,
                     "': clients are told this address: name a host by which they reach this one"));
  }
  ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(address, tls, insecure_listen));
  auto listener = std::make_unique<GrpcStateListener>(sources);
  RETURN_IF_ERROR(listener->Listen(address, parsed, std::move(credentials)));
  return listener;
}

}  // namespace tessera
