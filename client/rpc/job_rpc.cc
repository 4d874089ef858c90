#include "client/rpc/job_rpc.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/retry.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/rpc/worker_socket.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"

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

// Tries until it succeeds, fails for good, or the deadline has passed. `server`: its address.
absl::Status TryUntil(absl::Time deadline, const std::string& server,
                      absl::FunctionRef<bool(const absl::Status&)> try_again,
                      absl::FunctionRef<absl::Status()> attempt) {
  absl::Status answer;  // The last one that says more than that a try ran out of time.
  for (int count = 0;; ++count) {
    const absl::Status status = attempt();
    if (status.ok() || !try_again(status)) return status;
    if (answer.ok() || !absl::IsDeadlineExceeded(status)) answer = status;
    const absl::Duration delay = RetryDelay(kRetry, count, /*uniform=*/0.5);
    if (SteadyNow() + delay >= deadline)
      return absl::DeadlineExceededError(
          absl::StrCat(server, ": ", answer.ToString(absl::StatusToStringMode::kWithNoExtraData)));
    absl::SleepFor(delay);
  }
}

// Of one try.
absl::Time TryDeadline(absl::Time deadline) {
  return std::min(deadline, SteadyNow() + kCallDeadline);
}

template <typename Service>
absl::Status CallUntil(
    absl::Time deadline, const DialOptions& server,
    absl::FunctionRef<grpc::Status(typename Service::Stub*, grpc::ClientContext*)> call) {
  // Nobody here cancels a call: the server does that, when it stops.
  const auto try_again = [](const absl::Status& status) {
    return IsRetryable(status) || absl::IsCancelled(status);
  };
  return TryUntil(deadline, server.address, try_again, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(server));
    const std::unique_ptr<typename Service::Stub> stub = Service::NewStub(channel);
    grpc::ClientContext context;
    // Shorter than the whole: a server that hangs is left, and the next try may find its successor.
    context.set_deadline(GrpcDeadline(TryDeadline(deadline)));
    absl::Status status = FromGrpcStatus(call(stub.get(), &context));
    // gRPC says nothing more of a service that is not there.
    if (absl::IsUnimplemented(status) && status.message().empty()) {
      status = absl::FailedPreconditionError(
          absl::StrCat(server.address,
                       " has another service of Tessera: is it a worker's address "
                       "in the place of the coordinator's?"));
    }
    return status;
  });
}

}  // namespace

std::string NewRequestId() {
  std::random_device random;
  return absl::StrCat(getpid(), "-", absl::ToUnixNanos(WallNow()), "-", absl::Hex(random()),
                      absl::Hex(random()));
}

absl::StatusOr<v1::Job> CreateJob(const DialOptions& coordinator,
                                  const v1::CreateJobRequest& request, absl::Time deadline) {
  v1::Job job;
  RETURN_IF_ERROR(CallUntil<v1::Jobs>(deadline, coordinator,
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
  RETURN_IF_ERROR(CallUntil<v1::Jobs>(deadline, coordinator,
                                      [&](v1::Jobs::Stub* stub, grpc::ClientContext* context) {
                                        return stub->GetJob(context, request, &job);
                                      }));
  return job;
}

absl::Status DeleteJob(const DialOptions& coordinator, const v1::DeleteJobRequest& request,
                       absl::Time deadline) {
  v1::DeleteJobResponse response;
  return CallUntil<v1::Jobs>(deadline, coordinator,
                             [&](v1::Jobs::Stub* stub, grpc::ClientContext* context) {
                               return stub->DeleteJob(context, request, &response);
                             });
}

absl::StatusOr<AttachedRank> AttachToRank(const std::string& worker_address,
                                          const v1::AttachRequest& request, bool wait_if_attached,
                                          absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::string path, DescriptorSocketOf(worker_address));
  v1::LocalRequest asked;
  *asked.mutable_attach() = request;
  const std::string packet = EncodeRequest(std::move(asked));
  const auto try_again = [&](const absl::Status& status) {
    const v1::Retry retry = RetryOf(status);
    return IsRetryable(status) || retry == v1::RETRY_SOON ||
           (retry == v1::RETRY_WHEN_FREE && wait_if_attached);
  };
  AttachedRank rank;
  const absl::Status status = TryUntil(deadline, worker_address, try_again, [&]() -> absl::Status {
    absl::StatusOr<UniqueFd> lease = ConnectPacketSocket(path);
    // A worker that has not started yet has no socket.
    if (absl::IsNotFound(lease.status())) return absl::UnavailableError(lease.status().message());
    RETURN_IF_ERROR(lease.status());
    ASSIGN_OR_RETURN(Packet answer, AskWorker(lease->get(), packet, TryDeadline(deadline)));
    ASSIGN_OR_RETURN(v1::LocalReply reply, ParseReply(answer.bytes));
    if (!reply.has_attached()) return absl::UnavailableError("the worker gave nothing");
    // The socket is the lease: its end tells the worker that this trainer is gone.
    rank = {*std::move(lease), std::move(answer.fds), std::move(*reply.mutable_attached())};
    return absl::OkStatus();
  });
  if (status.ok()) return rank;
  return absl::Status(status.code(), status.message());  // Without the payload.
}

}  // namespace tessera
