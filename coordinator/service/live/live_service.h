// The gRPC service by which clients read live state (proto/live_state.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_read.h"
#include "coordinator/service/serve.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

class LiveStateService {
 public:
  // `host`, `gate` and `hub` outlive this.
  LiveStateService(CoordinatorHost* host, const Gate* gate, LiveHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status List(CallStream<v1::LiveStateQuery, v1::LiveTensorInfo>* stream,
                    v1::LiveStateQuery query);
  absl::Status Get(CallStream<v1::LiveStateQuery, v1::LiveStateReply>* stream,
                   v1::LiveStateQuery query);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  LiveHub* const hub_;
  const LiveTimes times_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_H_
