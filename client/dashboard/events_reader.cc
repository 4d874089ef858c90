#include "client/dashboard/events_reader.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/events.grpc.pb.h"

namespace tessera::dashboard {
namespace {

class GrpcEventsReader : public EventsReader {
 public:
  GrpcEventsReader(cli::Endpoint coordinator, const std::shared_ptr<grpc::Channel>& channel)
      : coordinator_(std::move(coordinator)), stub_(v1::Events::NewStub(channel)) {}

  absl::StatusOr<v1::ListEventsResponse> ListAfter(int64_t number) override {
    grpc::ClientContext context;
    cli::SetDeadline(coordinator_, &context);
    v1::ListEventsRequest request;
    request.set_after_number(number);
    v1::ListEventsResponse reply;
    const grpc::Status status = stub_->ListEvents(&context, request, &reply);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return v1::ListEventsResponse();
    RETURN_IF_ERROR(cli::CallStatus(status, "coordinator", coordinator_));
    return reply;
  }

 private:
  const cli::Endpoint coordinator_;
  const std::unique_ptr<v1::Events::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EventsReader>> EventsReader::Create(
    const cli::Endpoint& coordinator) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, cli::OpenChannel(coordinator));
  return std::make_unique<GrpcEventsReader>(coordinator, channel);
}

}  // namespace tessera::dashboard
