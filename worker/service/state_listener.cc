#include "worker/service/state_listener.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/address.h"
#include "net/credentials.h"
#include "net/server_connections.h"
#include "net/tcp_listener.h"
#include "net/tls_context.h"
#include "worker/service/live_fetch_service.h"

namespace tessera {
namespace {

class GrpcStateListener : public StateListener {
 public:
  explicit GrpcStateListener(LiveSources* sources) : service_(sources) {}
  ~GrpcStateListener() override {
    if (tcp_ != nullptr) tcp_->Stop();
    // At once: calls that are under way are cancelled.
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(SteadyNow()));
  }

  absl::Status Listen(const std::string& text, const ServerAddress& address,
                      std::shared_ptr<grpc::ServerCredentials> credentials) {
    ASSIGN_OR_RETURN(tcp_, TcpListener::Bind(address, text));
    grpc::ServerBuilder builder;
    tcp_->AddTo(&builder, std::move(credentials));
    SetKeepalive(&builder);
    ServerConnections::Limit(&builder, ServerConnections::Requests::kSmall);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      return absl::InternalError("gRPC could not start its server, and does not say why");
    RETURN_IF_ERROR(tcp_->Serve());
    const int port = tcp_->port();
    const bool v6 = absl::StrContains(address.host, ':');
    address_ =
        v6 ? absl::StrCat("[", address.host, "]:", port) : absl::StrCat(address.host, ":", port);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  LiveFetchService service_;
  std::string address_;
  std::unique_ptr<TcpListener> tcp_;
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
  // Without this the first client would find that the key is not the certificate's.
  if (!tls.empty()) RETURN_IF_ERROR(MakeServerContext(tls).status());
  auto listener = std::make_unique<GrpcStateListener>(sources);
  RETURN_IF_ERROR(listener->Listen(address, parsed, std::move(credentials)));
  return listener;
}

}  // namespace tessera
