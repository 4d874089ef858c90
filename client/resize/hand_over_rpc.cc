#include "client/resize/hand_over_rpc.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/grpc_status.h"
#include "proto/hand_over.grpc.pb.h"

namespace tessera {
namespace {

constexpr absl::Duration kRetryEvery = absl::Milliseconds(50);

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const DialOptions& coordinator) {
  grpc::ChannelArguments args;
  // These calls wait long; a coordinator whose machine is gone closes no connection.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // What may be on its way to here: a bound, where gRPC would let it grow with the line's speed.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
  args.SetMaxReceiveMessageSize(64 << 20);
  return OpenChannel(coordinator, std::move(args));
}

using Call =
    absl::FunctionRef<grpc::Status(v1::HandOvers::Stub*, grpc::ClientContext*, v1::HandOverInfo*)>;

absl::StatusOr<v1::HandOverInfo> CallUntil(const DialOptions& coordinator, absl::Time deadline,
                                           Call call) {
  while (true) {
    // A channel for each try: one that lost its peer may be slow to notice that it is back.
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(coordinator));
    const std::unique_ptr<v1::HandOvers::Stub> stub = v1::HandOvers::NewStub(channel);
    grpc::ClientContext context;
    // All of the time: the call itself waits for the other ranks, or for a job that takes over.
    context.set_deadline(GrpcDeadline(deadline));
    v1::HandOverInfo info;
    const absl::Status status = FromGrpcStatus(call(stub.get(), &context, &info));
    if (status.ok()) return info;
    // Nobody here cancels a call: the coordinator does that, when it stops. It also ends a call whose
    // request comes too slowly. Everything else is an answer.
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status) &&
        !absl::IsDeadlineExceeded(status))
      return status;
    if (SteadyNow() + kRetryEvery >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(coordinator.address, ": ", status.ToString()));
    }
    absl::SleepFor(kRetryEvery);
  }
}

class GrpcStream : public HandOverStream {
 public:
  GrpcStream(const std::shared_ptr<grpc::Channel>& channel, const v1::ReadHandOverRequest& request)
      : stub_(v1::HandOvers::NewStub(channel)), stream_(stub_->Read(&context_, request)) {}
  ~GrpcStream() override {
    if (stream_ == nullptr) return;
    // The coordinator must not go on sending to nobody.
    context_.TryCancel();
    (void)stream_->Finish();
  }
  absl::StatusOr<v1::HandOverReply> Next() override {
    v1::HandOverReply reply;
    if (stream_ == nullptr) return absl::UnavailableError("the stream ended");
    if (stream_->Read(&reply)) return reply;
    const absl::Status status = FromGrpcStatus(stream_->Finish());
    stream_.reset();
    return status.ok() ? absl::DataLossError("the stream ended too soon") : status;
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::HandOvers::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::HandOverReply>> stream_;
};

}  // namespace

absl::StatusOr<v1::HandOverInfo> HandOverRpc::Offer(const v1::OfferRequest& request,
                                                    absl::Time deadline) {
  return CallUntil(coordinator_, deadline, [&](auto* stub, auto* context, auto* info) {
    return stub->Offer(context, request, info);
  });
}

absl::StatusOr<v1::HandOverInfo> HandOverRpc::AwaitEnd(const v1::AwaitEndRequest& request,
                                                       absl::Time deadline) {
  return CallUntil(coordinator_, deadline, [&](auto* stub, auto* context, auto* info) {
    return stub->AwaitEnd(context, request, info);
  });
}

absl::StatusOr<v1::HandOverInfo> HandOverRpc::Get(const v1::GetHandOverRequest& request,
                                                  absl::Time deadline) {
  return CallUntil(coordinator_, deadline, [&](auto* stub, auto* context, auto* info) {
    return stub->Get(context, request, info);
  });
}

absl::StatusOr<v1::HandOverInfo> HandOverRpc::Cancel(const v1::CancelHandOverRequest& request,
                                                     absl::Time deadline) {
  return CallUntil(coordinator_, deadline, [&](auto* stub, auto* context, auto* info) {
    return stub->Cancel(context, request, info);
  });
}

absl::StatusOr<v1::HandOverInfo> HandOverRpc::TakeOver(const v1::TakeOverRequest& request,
                                                       absl::Time deadline) {
  return CallUntil(coordinator_, deadline, [&](auto* stub, auto* context, auto* info) {
    return stub->TakeOver(context, request, info);
  });
}

absl::StatusOr<std::unique_ptr<HandOverStream>> HandOverStream::Open(
    const DialOptions& coordinator, const v1::ReadHandOverRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(coordinator));
  return std::make_unique<GrpcStream>(channel, request);
}

}  // namespace tessera
