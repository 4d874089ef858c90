#include "client/cli/saves_client.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/saves.grpc.pb.h"

namespace tessera::cli {
namespace {

constexpr char kWho[] = "coordinator";

class GrpcSavesClient : public SavesClient {
 public:
  GrpcSavesClient(Endpoint endpoint, const std::shared_ptr<grpc::Channel>& channel)
      : endpoint_(std::move(endpoint)), stub_(v1::Checkpoints::NewStub(channel)) {}

  absl::StatusOr<v1::Save> Request(const v1::RequestSaveRequest& request) override {
    return Call(&v1::Checkpoints::Stub::RequestSave, request);
  }

  absl::StatusOr<v1::Save> Get(const std::string& job_id, int64_t number) override {
    v1::GetSaveRequest request;
    request.set_job_id(job_id);
    request.set_number(number);
    return Call(&v1::Checkpoints::Stub::GetSave, request);
  }

  absl::StatusOr<v1::Save> Cancel(const std::string& job_id, int64_t number) override {
    v1::CancelSaveRequest request;
    request.set_job_id(job_id);
    request.set_number(number);
    return Call(&v1::Checkpoints::Stub::CancelSave, request);
  }

  absl::StatusOr<v1::ListCheckpointsResponse> List(const std::string& job_id) override {
    v1::ListCheckpointsRequest request;
    request.set_job_id(job_id);
    return Call(&v1::Checkpoints::Stub::ListCheckpoints, request);
  }

 private:
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Checkpoints::Stub::*method)(grpc::ClientContext*,
                                                                           const Request&, Reply*),
                             const Request& request) {
    grpc::ClientContext context;
    SetDeadline(endpoint_, &context);
    Reply reply;
    RETURN_IF_ERROR(CallStatus((stub_.get()->*method)(&context, request, &reply), kWho, endpoint_));
    return reply;
  }

  const Endpoint endpoint_;
  const std::unique_ptr<v1::Checkpoints::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SavesClient>> SavesClient::Create(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(endpoint));
  return std::make_unique<GrpcSavesClient>(endpoint, channel);
}

}  // namespace tessera::cli
