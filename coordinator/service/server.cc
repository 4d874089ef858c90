#include "coordinator/service/server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/service/call_server.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/coordinator_metrics.h"
#include "coordinator/service/events_service.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hand_over/hand_over_service.h"
#include "coordinator/service/live/live_service.h"
#include "coordinator/service/live/put_service.h"
#include "coordinator/service/live/relay_service.h"
#include "coordinator/service/serve.h"
#include "coordinator/service/services.h"
#include "coordinator/storage/memory_journal.h"
#include "coordinator/storage/sqlite_journal.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/grpcpp.h"
#include "net/access_token.h"
#include "net/address.h"
#include "net/caller_identity.h"
#include "net/credentials.h"
#include "net/http_listener.h"
#include "net/local_listener.h"
#include "net/tcp_listener.h"
#include "net/tls_context.h"
#include "proto/health.pb.h"

namespace tessera::coordinator {
namespace {

absl::Status CheckHangs(const CoordinatorServer::Options& options) {
  if (options.hang_after < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hang after ", absl::FormatDuration(options.hang_after), " must not be negative"));
  }
  if (options.hang_after > absl::ZeroDuration() || !options.end_hung_epochs)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "hung epochs are to end, and hang after is 0, so that no rank is watched");
}

// Between two heartbeats each rank seems to stand still, so that fewer than two say nothing.
absl::Duration HangAfterOf(const CoordinatorServer::Options& options) {
  if (options.hang_after == absl::ZeroDuration()) return options.hang_after;
  return std::max(options.hang_after, 2 * options.heartbeat_interval);
}

absl::Status CheckTimes(const CoordinatorServer::Options& options) {
  if (options.live_client_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("live client timeout ", absl::FormatDuration(options.live_client_timeout),
                     " must be longer than 0"));
  }
  if (options.request_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("request timeout ",
                                                   absl::FormatDuration(options.request_timeout),
                                                   " must be longer than 0"));
  }
  if (options.prepare_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("prepare timeout ",
                                                   absl::FormatDuration(options.prepare_timeout),
                                                   " must be longer than 0"));
  }
  if (options.heartbeat_interval > absl::ZeroDuration() &&
      options.worker_timeout > options.heartbeat_interval) {
    return CheckHangs(options);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("worker timeout ", absl::FormatDuration(options.worker_timeout),
                   " must be longer than the heartbeat interval ",
                   absl::FormatDuration(options.heartbeat_interval), ", and that longer than 0"));
}

absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(const std::string& path) {
  if (path.empty()) return std::make_unique<MemoryJournal>();
  SqliteJournal::Options options;
  options.path = path;
  return SqliteJournal::Open(options);
}

// The token that calls must carry; empty: every caller has a certificate or a uid.
absl::StatusOr<std::string> TokenOf(const CoordinatorServer::Options& options) {
  if (options.listen_address.empty() || !options.tls.empty()) return std::string();
  if (!options.token_file.empty()) return ReadOrMakeAccessToken(options.token_file);
  ASSIGN_OR_RETURN(const std::string path, AccessTokenPath());
  return ReadOrMakeAccessToken(path);
}

LiveTimes LiveTimesOf(const CoordinatorServer::Options& options) {
  LiveTimes times;
  times.client = options.live_client_timeout;
  return times;
}

PutTimes PutTimesOf(const CoordinatorServer::Options& options) {
  PutTimes times;
  times.client = options.live_client_timeout;
  return times;
}

Gate::Limits LimitsOf(const CoordinatorServer::Options& options) {
  Gate::Limits limits;
  limits.max_calls = options.max_calls;
  limits.times = {options.request_timeout, options.live_client_timeout};
  limits.max_memory_bytes = options.max_memory_bytes;
  return limits;
}

// The health of the whole server. Anybody may ask for it, so nothing of such a call is read.
void AddHealth(CallServer* calls) {
  grpc::health::v1::HealthCheckResponse serving;
  serving.set_status(grpc::health::v1::HealthCheckResponse::SERVING);
  Method check;
  check.fixed = ToBytes(serving);
  calls->Add("grpc.health.v1.Health/Check", std::move(check));
  Method watch;
  watch.fixed = absl::UnimplementedError("ask with Check");
  calls->Add("grpc.health.v1.Health/Watch", std::move(watch));
}

class GrpcCoordinatorServer : public CoordinatorServer {
 public:
  GrpcCoordinatorServer(const Options& options, std::unique_ptr<CoordinatorHost> host,
                        AccessRules rules, std::string token, std::unique_ptr<LocalListener> local)
      : host_(std::move(host)),
        local_(std::move(local)),
        gate_(host_.get(), std::move(rules), CallerIdentities(std::move(token), local_.get()),
              LimitsOf(options)),
        jobs_(host_.get(), &gate_),
        membership_(host_.get(), &gate_, options.heartbeat_interval, options.worker_timeout),
        checkpoints_(host_.get(), &gate_),
        events_(host_.get(), &gate_),
        live_state_(host_.get(), &gate_, &live_hub_, LiveTimesOf(options)),
        live_relay_("LiveRelay", &gate_, &live_hub_.sessions),
        live_put_(host_.get(), &gate_, &put_hub_, PutTimesOf(options)),
        put_relay_("LivePutRelay", &gate_, &put_hub_.sessions),
        hand_overs_(host_.get(), &gate_, &live_hub_.sessions, LiveTimesOf(options)),
        calls_(&gate_) {}
  ~GrpcCoordinatorServer() override { Stop(); }

  absl::Status Listen(const Options& options, const ServerAddress& address,
                      std::shared_ptr<grpc::ServerCredentials> credentials);

  absl::Status ListenOverHttp(const Options& options) {
    if (options.http_listen_address.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(http_, HttpListener::Start({options.http_listen_address, options.tls,
                                                 options.insecure_http_listen},
                                                CoordinatorPages(host_.get(), &calls_)));
    TESSERA_LOG(INFO, "metrics and health over HTTP at port {}", http_->port());
    return absl::OkStatus();
  }

  int port() const override { return tcp_ == nullptr ? 0 : tcp_->port(); }
  int http_port() const override { return http_ == nullptr ? 0 : http_->port(); }
  bool AwaitProgress() override { return host_->AwaitTick(); }
  void Stop() override;
  void Wait() override { stopped_.WaitForNotification(); }

 private:
  const std::unique_ptr<CoordinatorHost> host_;
  const std::unique_ptr<LocalListener> local_;  // Null: it does not listen there.
  const Gate gate_;
  JobsService jobs_;
  MembershipService membership_;
  CheckpointsService checkpoints_;
  EventsService events_;
  LiveHub live_hub_;
  LiveStateService live_state_;
  RelayService<v1::LiveCommand, v1::LiveEvent> live_relay_;
  PutHub put_hub_;
  LivePutService live_put_;
  RelayService<v1::PutCommand, v1::PutEvent> put_relay_;
  HandOverService hand_overs_;
  CallServer calls_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<TcpListener> tcp_;  // Null: it does not listen there.
  absl::once_flag stop_once_;
  absl::Notification stopped_;
  std::unique_ptr<HttpListener> http_;
};

absl::Status GrpcCoordinatorServer::Listen(const Options& options, const ServerAddress& address,
                                           std::shared_ptr<grpc::ServerCredentials> credentials) {
  grpc::ServerBuilder builder;
  if (credentials != nullptr) {
    ASSIGN_OR_RETURN(tcp_, TcpListener::Bind(address, options.listen_address));
    tcp_->AddTo(&builder, std::move(credentials));
  }
  // Otherwise gRPC widens the window below by what it measures of a connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // How much of a call a client may send before we read it. While we read a message, it is more.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.request_timeout)));
  // Our clients do not compress, and a few compressed bytes can become very many.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // AddHealth takes the place of gRPC's own service, which other servers of this process may have.
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  SetKeepalive(&builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  jobs_.AddTo(&calls_);
  membership_.AddTo(&calls_);
  checkpoints_.AddTo(&calls_);
  events_.AddTo(&calls_);
  live_state_.AddTo(&calls_);
  live_relay_.AddTo(&calls_);
  live_put_.AddTo(&calls_);
  put_relay_.AddTo(&calls_);
  hand_overs_.AddTo(&calls_);
  AddHealth(&calls_);
  calls_.AddTo(&builder);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr)
    return absl::InternalError("gRPC could not start its server, and does not say why");
  RETURN_IF_ERROR(calls_.Start());
  if (tcp_ != nullptr) RETURN_IF_ERROR(tcp_->Serve());
  return local_ == nullptr ? absl::OkStatus() : local_->Serve(server_.get());
}

void GrpcCoordinatorServer::Stop() {
  absl::call_once(stop_once_, [this] {
    host_->Stop();  // So that no call waits when it is asked to end.
    // Its handlers wait in AwaitTick, which the host has ended.
    http_.reset();
    if (local_ != nullptr) local_->Stop();
    if (tcp_ != nullptr) tcp_->Stop();
    if (server_ != nullptr) {
      // Streams do not end by themselves, so gRPC cancels what still runs after this time.
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_->Wait();
    }
    // After the server, whose shutdown ends the calls that this waits for.
    calls_.Stop();
    stopped_.Notify();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const Options& options) {
  RETURN_IF_ERROR(CheckTimes(options));
  ASSIGN_OR_RETURN(AccessRules rules,
                   AccessRules::Make(OwnIdentity(), options.grants, options.save_roots));
  ServerAddress address;
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (!options.listen_address.empty()) {
    ASSIGN_OR_RETURN(address, ParseServerAddress(options.listen_address));
    if (address.reach == Reach::kUnix) {
      return absl::InvalidArgumentError(
          absl::StrCat("listen address '", options.listen_address, "': must be host:port"));
    }
    ASSIGN_OR_RETURN(credentials, MakeServerCredentials(options.listen_address, options.tls,
                                                        options.insecure_listen));
    // Without this the first client would find that the key is not the certificate's.
    if (!options.tls.empty()) RETURN_IF_ERROR(MakeServerContext(options.tls).status());
  } else if (options.local_socket.empty()) {
    return absl::InvalidArgumentError("neither an address nor a local socket to listen at");
  }
  ASSIGN_OR_RETURN(std::string token, TokenOf(options));
  std::unique_ptr<LocalListener> local;
  if (!options.local_socket.empty()) {
    ASSIGN_OR_RETURN(local, LocalListener::Bind(options.local_socket));
  }
  // Before any call is served: the journal refuses a second coordinator that opens it.
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, OpenJournal(options.journal_path));
  CoordinatorHost::Options host_options;
  host_options.core.worker_timeout = options.worker_timeout;
  host_options.core.prepare_timeout = options.prepare_timeout;
  host_options.core.restart_delay = options.restart_delay;
  host_options.core.hang_after = HangAfterOf(options);
  host_options.core.end_hung_epochs = options.end_hung_epochs;
  host_options.core.max_jobs_of_owner = options.max_jobs_of_owner;
  host_options.core.max_model_bytes_of_owner = options.max_model_bytes_of_owner;
  host_options.core.max_model_bytes = options.max_model_bytes;
  if (options.spread_ranks) host_options.core.placement = PlacementRule::kSpread;
  host_options.tick_interval = std::min(absl::Milliseconds(50), options.heartbeat_interval / 4);
  host_options.clock = options.clock;
  host_options.cluster_id = options.cluster_id;
  host_options.older_journal = options.older_journal;
  ASSIGN_OR_RETURN(auto host, CoordinatorHost::Create(host_options, std::move(journal)));
  auto server = std::make_unique<GrpcCoordinatorServer>(options, std::move(host), std::move(rules),
                                                        std::move(token), std::move(local));
  RETURN_IF_ERROR(server->Listen(options, address, std::move(credentials)));
  RETURN_IF_ERROR(Annotate(server->ListenOverHttp(options), "--http-listen"));
  if (server->port() > 0)
    TESSERA_LOG(INFO, "coordinator listens on {}:{}", address.host, server->port());
  if (!options.local_socket.empty())
    TESSERA_LOG(INFO, "coordinator listens on unix:{}", options.local_socket);
  return server;
}

}  // namespace tessera::coordinator
