#include "client/cli/live_client.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::cli {
namespace {

constexpr char kWho[] = "coordinator";

class GrpcLiveClient : public LiveClient {
 public:
  GrpcLiveClient(Endpoint endpoint, const std::shared_ptr<grpc::Channel>& channel)
      : endpoint_(std::move(endpoint)), stub_(v1::LiveState::NewStub(channel)) {}

  absl::StatusOr<std::vector<v1::LiveTensorInfo>> List(const v1::LiveStateQuery& query) override {
    grpc::ClientContext context;
    SetDeadline(endpoint_, &context);
    const auto reader = stub_->ListLiveState(&context, query);
    std::vector<v1::LiveTensorInfo> tensors;
    v1::LiveTensorInfo tensor;
    while (reader->Read(&tensor)) tensors.push_back(std::move(tensor));
    RETURN_IF_ERROR(CallStatus(reader->Finish(), kWho, endpoint_));
    return tensors;
  }

  absl::Status Get(const v1::LiveStateQuery& query,
                   absl::FunctionRef<absl::Status(const v1::LiveStateReply&)> take) override {
    grpc::ClientContext context;
    const auto reader = stub_->GetLiveState(&context, query);
    v1::LiveStateReply reply;
    absl::Status taken;
    while (taken.ok() && reader->Read(&reply)) taken = take(reply);
    if (!taken.ok()) context.TryCancel();
    const absl::Status status = CallStatus(reader->Finish(), kWho, endpoint_);
    return taken.ok() ? status : taken;
  }

 private:
  const Endpoint endpoint_;
  const std::unique_ptr<v1::LiveState::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LiveClient>> LiveClient::Create(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(endpoint));
  return std::make_unique<GrpcLiveClient>(endpoint, channel);
}

}  // namespace tessera::cli
