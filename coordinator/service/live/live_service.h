// The gRPC services of live state (proto/live_state.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_

#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_hub.h"
#include "coordinator/service/live/live_reader.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::coordinator {

// For clients.
class LiveStateService : public v1::LiveState::Service {
 public:
  // `host`, `gate` and `hub` outlive this.
  LiveStateService(CoordinatorHost* host, const Gate* gate, LiveHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}

  grpc::Status ListLiveState(grpc::ServerContext* context, const v1::LiveStateQuery* query,
                             grpc::ServerWriter<v1::LiveTensorInfo>* writer) override;
  grpc::Status GetLiveState(grpc::ServerContext* context, const v1::LiveStateQuery* query,
                            grpc::ServerWriter<v1::LiveStateReply>* writer) override;

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
  const Gate* const gate_;
  LiveHub* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
