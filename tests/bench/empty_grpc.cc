#include "tests/bench/empty_grpc.h"

#include "absl/time/clock.h"
#include "base/check.h"
#include "grpcpp/grpcpp.h"
#include "proto/worker.grpc.pb.h"

namespace tessera {
namespace bench {

struct EmptyGrpcServer::State {
  class Service final : public v1::Worker::Service {
   public:
    grpc::Status GetStatus(grpc::ServerContext*, const v1::WorkerStatusRequest*,
                           v1::WorkerStatusResponse*) override {
      return grpc::Status::OK;
    }
  };
  Service service;
  std::unique_ptr<grpc::Server> server;
};

EmptyGrpcServer::EmptyGrpcServer(const std::string& socket) : state_(std::make_unique<State>()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(&state_->service);
  state_->server = builder.BuildAndStart();
  TESSERA_CHECK(state_->server != nullptr);
}

EmptyGrpcServer::~EmptyGrpcServer() = default;

struct EmptyGrpcClient::State {
  std::unique_ptr<v1::Worker::Stub> stub;
};

EmptyGrpcClient::EmptyGrpcClient(const std::string& socket) : state_(std::make_unique<State>()) {
  state_->stub = v1::Worker::NewStub(
      grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
}

EmptyGrpcClient::~EmptyGrpcClient() = default;

double EmptyGrpcClient::SecondsPerCall(int calls) {
  const int64_t start_ns = absl::GetCurrentTimeNanos();
  for (int i = 0; i < calls; ++i) {
    grpc::ClientContext context;
    v1::WorkerStatusRequest request;
    v1::WorkerStatusResponse response;
    TESSERA_CHECK(state_->stub->GetStatus(&context, request, &response).ok());
  }
  return 1e-9 * (absl::GetCurrentTimeNanos() - start_ns) / calls;
}

}  // namespace bench
}  // namespace tessera
