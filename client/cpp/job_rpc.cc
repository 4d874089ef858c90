#include "client/cpp/job_rpc.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/retry.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/worker.grpc.pb.h"

namespace tessera {
namespace {

constexpr absl::Duration kCallDeadline = absl::Seconds(10);
// Most of what is waited for takes milliseconds.
constexpr RetryOptions kRetry = {absl::Milliseconds(2), absl::Milliseconds(50)};

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const DialOptions& server) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetMaxReceiveMessageSize(64 << 20);
  // Each try has a connection of its own: one that was refused would make the next tries wait.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return OpenChannel(server, std::move(args));
}

// Calls until it succeeds, fails for good, or the deadline has passed.
template <typename Service>
absl::Status CallUntil(
    absl::Time deadline, const DialOptions& server,
    const std::function<bool(const absl::Status&)>& try_again,
    const std::function<grpc::Status(typename Service::Stub*, grpc::ClientContext*)>& call) {
  absl::Status answer;  // The last one that says more than that a try ran out of time.
  for (int attempt = 0;; ++attempt) {
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(server));
    const std::unique_ptr<typename Service::Stub> stub = Service::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(std::min(deadline, SteadyNow() + kCallDeadline)));
    const absl::Status status = FromGrpcStatus(call(stub.get(), &context));
    if (status.ok()) return status;
    // Nobody here cancels a call: the server does that, when it stops.
    if (!IsRetryable(status) && !absl::IsCancelled(status) && !try_again(status)) return status;
    if (answer.ok() || !absl::IsDeadlineExceeded(status)) answer = status;
    const absl::Duration delay = RetryDelay(kRetry, attempt, /*uniform=*/0.5);
    if (SteadyNow() + delay >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(server.address, ": ", answer.ToString()));
    }
    absl::SleepFor(delay);
  }
}

bool Never(const absl::Status&) { return false; }

}  // namespace

std::string NewRequestId() {
  std::random_device random;
  return absl::StrCat(getpid(), "-", absl::ToUnixNanos(WallNow()), "-", absl::Hex(random()),
                      absl::Hex(random()));
}

absl::StatusOr<v1::Job> CreateJob(const DialOptions& coordinator,
                                  const v1::CreateJobRequest& request, absl::Time deadline) {
  v1::Job job;
  RETURN_IF_ERROR(CallUntil<v1::Jobs>(deadline, coordinator, Never,
                                      [&](v1::Jobs::Stub* stub, grpc::ClientContext* context) {
                                        return stub->CreateJob(context, request, &job);
                                      }));
  return job;
}

absl::StatusOr<v1::Job> GetJob(const DialOptions& coordinator, const std::string& job_id,
                               absl::Time deadline) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  v1::Job job;
  RETURN_IF_ERROR(CallUntil<v1::Jobs>(deadline, coordinator, Never,
                                      [&](v1::Jobs::Stub* stub, grpc::ClientContext* context) {
                                        return stub->GetJob(context, request, &job);
                                      }));
  return job;
}

absl::Status DeleteJob(const DialOptions& coordinator, const v1::DeleteJobRequest& request,
                       absl::Time deadline) {
  v1::DeleteJobResponse response;
  return CallUntil<v1::Jobs>(deadline, coordinator, Never,
                             [&](v1::Jobs::Stub* stub, grpc::ClientContext* context) {
                               return stub->DeleteJob(context, request, &response);
                             });
}

absl::StatusOr<v1::AttachResponse> AttachToRank(const DialOptions& worker,
                                                const v1::AttachRequest& request,
                                                bool wait_if_attached, absl::Time deadline) {
  v1::AttachResponse response;
  const auto try_again = [&](const absl::Status& status) {
    if (absl::IsAlreadyExists(status)) return wait_if_attached;
    if (absl::IsNotFound(status)) return absl::StrContains(status.message(), "has no job");
    return absl::IsFailedPrecondition(status) && absl::EndsWith(status.message(), "try again");
  };
  RETURN_IF_ERROR(CallUntil<v1::Worker>(deadline, worker, try_again,
                                        [&](v1::Worker::Stub* stub, grpc::ClientContext* context) {
                                          return stub->Attach(context, request, &response);
                                        }));
  return response;
}

}  // namespace tessera
