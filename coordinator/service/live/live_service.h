// The gRPC services of live state (proto/live_state.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_

#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_hub.h"
#include "coordinator/service/live/live_reader.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::coordinator {

// For clients.
class LiveStateService : public v1::LiveState::StreamedService {
 public:
  // `host`, `gate` and `hub` outlive this.
  LiveStateService(CoordinatorHost* host, const Gate* gate, LiveHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}

  grpc::Status StreamedListLiveState(
      grpc::ServerContext* context,
      grpc::ServerSplitStreamer<v1::LiveStateQuery, v1::LiveTensorInfo>* stream) override;
  grpc::Status StreamedGetLiveState(
      grpc::ServerContext* context,
      grpc::ServerSplitStreamer<v1::LiveStateQuery, v1::LiveStateReply>* stream) override;

 private:
  CoordinatorHost* const host_;
  const Gate* const gate_;
  LiveHub* const hub_;
  const LiveTimes times_;
};

// For workers, which dial the coordinator.
class LiveRelayService : public v1::LiveRelay::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::LiveCommand, v1::LiveEvent>;

  LiveRelayService(const Gate* gate, LiveHub* hub) : gate_(gate), hub_(hub) {}

  grpc::Status Relay(grpc::ServerContext* context, Stream* stream) override;

 private:
  absl::Status RunRelay(grpc::ServerContext* context, Stream* stream);

  const Gate* const gate_;
  LiveHub* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
