// The gRPC service by which clients set values (proto/live_put.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_writer.h"
#include "coordinator/service/serve.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

class LivePutService {
 public:
  // `host`, `gate` and `hub` outlive this.
  LivePutService(CoordinatorHost* host, const Gate* gate, PutHub* hub, const PutTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status Put(CallStream<v1::PutRequest, v1::PutReply>* stream, v1::PutRequest first);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  PutHub* const hub_;
  const PutTimes times_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_
