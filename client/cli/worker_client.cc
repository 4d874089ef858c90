#include "client/cli/worker_client.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/worker.grpc.pb.h"

namespace tessera::cli {
namespace {

constexpr char kWho[] = "worker";

class GrpcWorkerClient : public WorkerClient {
 public:
  GrpcWorkerClient(Endpoint endpoint, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)), stub_(v1::Worker::NewStub(std::move(channel))) {}

  absl::StatusOr<v1::WorkerStatusResponse> GetStatus() override {
    grpc::ClientContext context;
    SetDeadline(endpoint_, &context);
    v1::WorkerStatusResponse reply;
    RETURN_IF_ERROR(
        CallStatus(stub_->GetStatus(&context, v1::WorkerStatusRequest(), &reply), kWho, endpoint_));
    return reply;
  }

  absl::StatusOr<v1::DumpRankResponse> DumpRank(const std::string& job_id, Rank rank) override {
    grpc::ClientContext context;
    SetDeadline(endpoint_, &context);
    v1::DumpRankRequest request;
    request.set_job_id(job_id);
    request.set_rank(static_cast<int32_t>(rank.value()));
    v1::DumpRankResponse reply;
    RETURN_IF_ERROR(CallStatus(stub_->DumpRank(&context, request, &reply), kWho, endpoint_));
    return reply;
  }

 private:
  const Endpoint endpoint_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerClient>> WorkerClient::Create(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(endpoint));
  return std::make_unique<GrpcWorkerClient>(endpoint, std::move(channel));
}

}  // namespace tessera::cli
