#include "client/cli/jobs_client.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/channel.h"
#include "grpcpp/grpcpp.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/events.grpc.pb.h"
#include "proto/hand_over.grpc.pb.h"

namespace tessera::cli {
namespace {

constexpr char kWho[] = "coordinator";

std::string NewRequestId() {
  // The coordinator takes a request with an id that it knows for a retry.
  std::random_device random;
  return absl::StrCat("cli-", absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

class GrpcJobsClient : public JobsClient {
 public:
  GrpcJobsClient(Endpoint endpoint, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)),
        jobs_(v1::Jobs::NewStub(channel)),
        hand_overs_(v1::HandOvers::NewStub(channel)),
        membership_(v1::Membership::NewStub(channel)),
        events_(v1::Events::NewStub(channel)) {}

  absl::StatusOr<v1::ListJobsResponse> ListJobs() override {
    v1::ListJobsResponse all;
    std::string after;
    do {
      ASSIGN_OR_RETURN(v1::ListJobsResponse page, ListJobsAfter(after));
      // Empty after the last page.
      after = page.next_after_job_id();
      for (v1::Job& job : *page.mutable_jobs()) *all.add_jobs() = std::move(job);
    } while (!after.empty());
    return all;
  }

  absl::StatusOr<v1::ListJobsResponse> ListJobsAfter(const std::string& job_id) override {
    v1::ListJobsRequest request;
    request.set_after_job_id(job_id);
    return Call(jobs_.get(), &v1::Jobs::Stub::ListJobs, request);
  }

  absl::StatusOr<v1::Job> GetJob(const std::string& job_id) override {
    v1::GetJobRequest request;
    request.set_job_id(job_id);
    return Call(jobs_.get(), &v1::Jobs::Stub::GetJob, request);
  }

  absl::StatusOr<v1::JobLayout> GetLayout(const std::string& job_id) override {
    v1::GetLayoutRequest request;
    request.set_job_id(job_id);
    return Call(jobs_.get(), &v1::Jobs::Stub::GetLayout, request);
  }

  absl::Status DeleteJob(const std::string& job_id) override {
    v1::DeleteJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id(job_id);
    return Call(jobs_.get(), &v1::Jobs::Stub::DeleteJob, request).status();
  }

  absl::Status TakeBack(const std::string& job_id) override {
    v1::CancelHandOverRequest request;
    request.set_job_id(job_id);
    return Call(hand_overs_.get(), &v1::HandOvers::Stub::Cancel, request).status();
  }

  absl::StatusOr<v1::ListWorkersResponse> ListWorkers() override {
    return Call(membership_.get(), &v1::Membership::Stub::ListWorkers, v1::ListWorkersRequest());
  }

  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request) override {
    return Call(events_.get(), &v1::Events::Stub::ListEvents, request);
  }

 private:
  template <typename Stub, typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Stub* stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Reply*),
                             const Request& request) {
    grpc::ClientContext context;
    SetDeadline(endpoint_, &context);
    Reply reply;
    RETURN_IF_ERROR(CallStatus((stub->*method)(&context, request, &reply), kWho, endpoint_));
    return reply;
  }

  const Endpoint endpoint_;
  const std::unique_ptr<v1::Jobs::Stub> jobs_;
  const std::unique_ptr<v1::HandOvers::Stub> hand_overs_;
  const std::unique_ptr<v1::Membership::Stub> membership_;
  const std::unique_ptr<v1::Events::Stub> events_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<JobsClient>> JobsClient::Create(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(endpoint));
  return std::make_unique<GrpcJobsClient>(endpoint, std::move(channel));
}

}  // namespace tessera::cli
