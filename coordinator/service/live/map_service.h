// The gRPC services by which clients map live state (proto/live_map.proto). The coordinator decides
// what a client may map and for how long; the workers give the descriptors. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_read.h"
#include "coordinator/service/live/map_hub.h"
#include "coordinator/service/serve.h"
#include "proto/live_map.pb.h"

namespace tessera::coordinator {

// For clients.
class LiveMapService {
 public:
  using Stream = CallStream<v1::LiveStateQuery, v1::LiveMapReply>;

  // `host`, `gate` and `hub` outlive this.
  LiveMapService(CoordinatorHost* host, const Gate* gate, MapHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status Map(Stream* stream, v1::LiveStateQuery query);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  MapHub* const hub_;
  const LiveTimes times_;
};

// For workers, which dial the coordinator.
class LiveMapRelayService {
 public:
  LiveMapRelayService(const Gate* gate, MapHub* hub) : gate_(gate), hub_(hub) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status Relay(CallStream<v1::LiveMapEvent, v1::LiveMapOffer>* stream,
                     v1::LiveMapEvent event);

  const Gate* const gate_;
  MapHub* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_MAP_SERVICE_H_
