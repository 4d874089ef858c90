#include "client/cli/put_client.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/live_put.grpc.pb.h"

namespace tessera::cli {
namespace {

class GrpcPutClient : public PutClient {
 public:
  GrpcPutClient(Endpoint endpoint, const std::shared_ptr<grpc::Channel>& channel)
      : endpoint_(std::move(endpoint)), stub_(v1::LivePut::NewStub(channel)) {}

  absl::StatusOr<v1::PutReply> Put(
      const v1::PutBegin& begin, absl::FunctionRef<absl::Status(SendPiece)> send_pieces) override {
    // Without a deadline: a put takes as long as its data and the trainers' next step.
    grpc::ClientContext context;
    v1::PutReply reply;
    const auto writer = stub_->PutLiveState(&context, &reply);
    v1::PutRequest request;
    *request.mutable_begin() = begin;
    bool is_open = writer->Write(request);
    absl::Status sent;
    if (is_open) {
      sent = send_pieces([&](const v1::LivePiece& piece) {
        *request.mutable_piece() = piece;
        // A write that fails has no reason of its own: the call is over, and Finish says why.
        is_open = is_open && writer->Write(request);
        return is_open;
      });
    }
    // Cancelled instead of ended: after an end the workers would offer what they have.
    if (!sent.ok()) context.TryCancel();
    if (sent.ok() && is_open) {
      request.mutable_end();
      writer->WriteLast(request, grpc::WriteOptions());
    }
    const absl::Status status = CallStatus(writer->Finish(), "coordinator", endpoint_);
    // First, because after it the call's status says only that it was cancelled.
    RETURN_IF_ERROR(sent);
    RETURN_IF_ERROR(status);
    return reply;
  }

 private:
  const Endpoint endpoint_;
  const std::unique_ptr<v1::LivePut::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PutClient>> PutClient::Create(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(endpoint));
  return std::make_unique<GrpcPutClient>(endpoint, channel);
}

}  // namespace tessera::cli
