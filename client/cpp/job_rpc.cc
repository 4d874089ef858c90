#include "client/cpp/job_rpc.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/retry.h"
#include "base/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/worker.grpc.pb.h"

namespace tessera {
namespace {

constexpr absl::Duration kCallDeadline = absl::Seconds(10);
constexpr absl::Duration kRetryEvery = absl::Milliseconds(50);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetMaxReceiveMessageSize(64 << 20);
  // Each try has a connection of its own: one that was refused would make the next tries wait.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

// Calls until it succeeds, fails for good, or the deadline has passed.
absl::Status CallUntil(absl::Time deadline, const std::string& address,
                       const std::function<bool(const absl::Status&)>& try_again,
                       const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::min(deadline, absl::Now() + kCallDeadline)));
    const absl::Status status = FromGrpcStatus(call(&context));
    if (status.ok()) return status;
    if (!IsRetryable(status) && !try_again(status)) return status;
    if (absl::Now() + kRetryEvery >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(address, ": ", status.ToString()));
    }
    absl::SleepFor(kRetryEvery);
  }
}

bool Never(const absl::Status&) { return false; }

}  // namespace

std::string NewRequestId() {
  std::random_device random;
  return absl::StrCat(getpid(), "-", absl::ToUnixNanos(absl::Now()), "-", absl::Hex(random()),
                      absl::Hex(random()));
}

absl::StatusOr<v1::Job> CreateJob(const std::string& coordinator,
                                  const v1::CreateJobRequest& request, absl::Time deadline) {
  v1::Job job;
  RETURN_IF_ERROR(CallUntil(deadline, coordinator, Never, [&](grpc::ClientContext* context) {
    return v1::Jobs::NewStub(MakeChannel(coordinator))->CreateJob(context, request, &job);
  }));
  return job;
}

absl::StatusOr<v1::Job> GetJob(const std::string& coordinator, const std::string& job_id,
                               absl::Time deadline) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  v1::Job job;
  RETURN_IF_ERROR(CallUntil(deadline, coordinator, Never, [&](grpc::ClientContext* context) {
    return v1::Jobs::NewStub(MakeChannel(coordinator))->GetJob(context, request, &job);
  }));
  return job;
}

absl::Status DeleteJob(const std::string& coordinator, const v1::DeleteJobRequest& request,
                       absl::Time deadline) {
  v1::DeleteJobResponse response;
  return CallUntil(deadline, coordinator, Never, [&](grpc::ClientContext* context) {
    return v1::Jobs::NewStub(MakeChannel(coordinator))->DeleteJob(context, request, &response);
  });
}

absl::StatusOr<v1::AttachResponse> AttachToRank(const std::string& worker,
                                                const v1::AttachRequest& request,
                                                bool wait_if_attached, absl::Time deadline) {
  v1::AttachResponse response;
  const auto try_again = [&](const absl::Status& status) {
    if (absl::IsAlreadyExists(status)) return wait_if_attached;
    if (absl::IsNotFound(status)) return absl::StrContains(status.message(), "has no job");
    return absl::IsFailedPrecondition(status) && absl::EndsWith(status.message(), "try again");
  };
  RETURN_IF_ERROR(CallUntil(deadline, worker, try_again, [&](grpc::ClientContext* context) {
    return v1::Worker::NewStub(MakeChannel(worker))->Attach(context, request, &response);
  }));
  return response;
}

}  // namespace tessera
