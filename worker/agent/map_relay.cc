#include "worker/agent/map_relay.h"

#include <atomic>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc_status.h"
#include "proto/live_map.grpc.pb.h"
#include "worker/agent/relay_channel.h"

namespace tessera {

class MapRelay::Session {
 public:
  Session(MapRelay* relay, v1::ServeState command) : relay_(relay), command_(std::move(command)) {}
  ~Session() {
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    ASSIGN_OR_RETURN(thread_, StartThread("a session of maps", [this] { Run(); }));
    return absl::OkStatus();
  }
  void Cancel() { call_.Cancel(); }
  bool done() const { return done_.load(); }

 private:
  using Stream = grpc::ClientReaderWriter<v1::LiveMapEvent, v1::LiveMapOffer>;

  void Run() {
    const absl::Status status = Serve();
    // That it was cancelled is the ordinary end.
    if (!status.ok() && !absl::IsCancelled(status)) {
      TESSERA_LOG(INFO, "job {}: maps of its state: {}", command_.job_id(), status.ToString());
    }
    call_.End();
    done_.store(true);
  }

  absl::Status Serve() {
    ASSIGN_OR_RETURN(const auto channel, relay_->Connection());
    const auto stub = v1::LiveMapRelay::NewStub(channel);
    const std::unique_ptr<Stream> stream = stub->Relay(call_.context());
    Talk(stream.get());
    stream->WritesDone();
    return FromGrpcStatus(stream->Finish());
  }

  // Until the stream ends.
  void Talk(Stream* stream) {
    v1::LiveMapEvent event;
    event.mutable_hello()->set_session(command_.session());
    event.mutable_hello()->set_worker_id(relay_->options_.worker_id);
    v1::LiveMapOffer offer;
    if (!stream->Write(event) || !stream->Read(&offer)) return;
    MapRequest request;
    request.parameters.assign(offer.parameters().begin(), offer.parameters().end());
    request.moments = offer.moments();
    request.buffers.assign(offer.buffers().begin(), offer.buffers().end());
    MapGrants* const grants = relay_->options_.grants;
    // Before the client hears of it, which comes to the descriptor socket at once.
    const absl::Status added =
        grants->Add(command_.session(), command_.job_id(), command_.generation(), request);
    if (added.ok()) {
      event.mutable_offered()->set_descriptor_socket(relay_->options_.descriptor_socket);
    } else {
      event.mutable_failure()->set_code(added.raw_code());
      event.mutable_failure()->set_message(PrintableUtf8(added.message()));
    }
    if (stream->Write(event) && added.ok()) {
      // Nothing more is said. The end of the stream is the end of the grant.
      while (stream->Read(&offer)) continue;
    }
    if (added.ok()) grants->Remove(command_.session());
  }

  MapRelay* const relay_;
  const v1::ServeState command_;
  RelayCall call_;
  std::thread thread_;
  std::atomic<bool> done_{false};
};

MapRelay::MapRelay(Options options) : options_(std::move(options)), sessions_(kMaxSessions) {}

MapRelay::~MapRelay() { Stop(); }

absl::StatusOr<std::shared_ptr<grpc::Channel>> MapRelay::Connection() {
  absl::MutexLock lock(&mu_);
  if (connection_ == nullptr) {
    ASSIGN_OR_RETURN(connection_, OpenRelayChannel(options_.coordinator));
  }
  return connection_;
}

void MapRelay::Serve(const v1::ServeState& command) {
  const absl::Status status =
      sessions_.Serve(std::make_unique<Session>(this, command), "map state of this worker already");
  if (!status.ok())
    TESSERA_LOG(WARNING, "job {}: its state is not mapped: {}", command.job_id(),
                status.ToString());
}

void MapRelay::Stop() { sessions_.Stop(); }

}  // namespace tessera
