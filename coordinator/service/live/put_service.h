// The gRPC services of puts (proto/live_put.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_

#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_writer.h"
#include "coordinator/service/live/put_hub.h"
#include "proto/live_put.grpc.pb.h"

namespace tessera::coordinator {

// For clients.
class LivePutService : public v1::LivePut::Service {
 public:
  // `host`, `gate` and `hub` outlive this.
  LivePutService(CoordinatorHost* host, const Gate* gate, PutHub* hub, const PutTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}

  grpc::Status PutLiveState(grpc::ServerContext* context,
                            grpc::ServerReader<v1::PutRequest>* reader,
                            v1::PutReply* reply) override;

 private:
  absl::Status Run(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                   v1::PutReply* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  PutHub* const hub_;
  const PutTimes times_;
};

// For workers, which dial the coordinator.
class LivePutRelayService : public v1::LivePutRelay::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::PutCommand, v1::PutEvent>;

  LivePutRelayService(const Gate* gate, PutHub* hub) : gate_(gate), hub_(hub) {}

  grpc::Status Relay(grpc::ServerContext* context, Stream* stream) override;

 private:
  absl::Status RunRelay(grpc::ServerContext* context, Stream* stream);

  const Gate* const gate_;
  PutHub* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_SERVICE_H_
