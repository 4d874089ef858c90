// Says that the server serves, to anybody. It reads nothing and waits for nobody, so callers whom
// nobody knows hold no thread or memory by it; gRPC's own would read requests of any length. The
// methods are streams to gRPC, which it does not read by itself; on the wire that is the same.
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_HEALTH_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_HEALTH_SERVICE_H_

#include "grpcpp/server_context.h"
#include "grpcpp/support/method_handler.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/health.grpc.pb.h"

namespace tessera::coordinator {

class HealthService : public grpc::health::v1::Health::Service {
 public:
  HealthService() {
    using Handler = grpc::internal::BidiStreamingHandler<HealthService, Request, Reply>;
    MarkMethodStreamed(0, new Handler(
                              [](HealthService*, grpc::ServerContext*, Stream* stream) {
                                Reply reply;
                                reply.set_status(Reply::SERVING);
                                stream->Write(reply);
                                return grpc::Status::OK;
                              },
                              this));
    MarkMethodStreamed(1, new Handler(
                              [](HealthService*, grpc::ServerContext*, Stream*) {
                                return grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                                                    "ask with Check");
                              },
                              this));
  }

 private:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Reply = grpc::health::v1::HealthCheckResponse;
  using Stream = grpc::ServerReaderWriter<Reply, Request>;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HEALTH_SERVICE_H_
