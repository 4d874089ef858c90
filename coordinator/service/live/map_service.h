// The gRPC services by which clients map live state (proto/live_map.proto). The coordinator decides
// what a client may map and for how long; the workers give the descriptors. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_

#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_reader.h"
#include "coordinator/service/live/map_hub.h"
#include "proto/live_map.grpc.pb.h"

namespace tessera::coordinator {

// For clients.
class LiveMapService : public v1::LiveMap::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::LiveMapReply, v1::LiveStateQuery>;

  // `host`, `gate` and `hub` outlive this.
  LiveMapService(CoordinatorHost* host, const Gate* gate, MapHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}

  grpc::Status MapLiveState(grpc::ServerContext* context, Stream* stream) override;

 private:
  absl::Status Run(grpc::ServerContext* context, Stream* stream);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  MapHub* const hub_;
  const LiveTimes times_;
};

// For workers, which dial the coordinator.
class LiveMapRelayService : public v1::LiveMapRelay::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::LiveMapOffer, v1::LiveMapEvent>;

  LiveMapRelayService(const Gate* gate, MapHub* hub) : gate_(gate), hub_(hub) {}

  grpc::Status Relay(grpc::ServerContext* context, Stream* stream) override;

 private:
  absl::Status RunRelay(grpc::ServerContext* context, Stream* stream);

  const Gate* const gate_;
  MapHub* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_
