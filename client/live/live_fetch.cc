#include "client/live/live_fetch.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/grpc_status.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera {
namespace {

// Of a query's patterns and addresses, not of elements: those come in pieces.
constexpr int kMaxReplyBytes = 256 << 20;

// For a connection. What does not answer by then is on a network that this client is not on.
constexpr absl::Duration kPatience = absl::Seconds(3);

class GrpcLiveFetch : public LiveFetch {
 public:
  GrpcLiveFetch(std::string worker, std::shared_ptr<grpc::Channel> channel)
      : worker_(std::move(worker)),
        channel_(std::move(channel)),
        stub_(v1::LiveFetch::NewStub(channel_)) {}
  ~GrpcLiveFetch() override {
    if (reader_ == nullptr || ended_) return;
    // The worker's hold must not wait for the end of this process.
    context_.TryCancel();
    (void)End();
  }

  // With the first piece, so that it is known to be the right worker's.
  absl::Status Begin(const std::string& session) {
    // Here, since the call itself has no deadline: its pieces take as long as they take.
    if (!channel_->WaitForConnected(GrpcDeadline(SteadyNow() + kPatience)))
      return absl::UnavailableError("nothing answers");
    v1::LiveFetchRequest request;
    request.set_session(session);
    reader_ = stub_->Fetch(&context_, request);
    // A worker that does not know the session says so before its first piece.
    has_first_ = reader_->Read(&first_);
    return has_first_ ? absl::OkStatus() : End();
  }

  absl::Status Next(v1::LivePiece* piece) override {
    if (std::exchange(has_first_, false)) {
      *piece = std::move(first_);
      return absl::OkStatus();
    }
    if (!ended_ && reader_->Read(piece)) return absl::OkStatus();
    return Annotate(End(), absl::StrCat("worker '", worker_, "'"));
  }

 private:
  absl::Status End() {
    // Finish is called once.
    if (!std::exchange(ended_, true)) status_ = FromGrpcStatus(reader_->Finish());
    return status_.ok() ? absl::DataLossError("it sent too little") : status_;
  }

  const std::string worker_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::LiveFetch::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::LivePiece>> reader_;
  v1::LivePiece first_;
  bool has_first_ = false, ended_ = false;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenLiveChannel(const DialOptions& server,
                                                               const Keepalive& keepalive) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  // A client that polls must not wait minutes for a server that came back.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  SetKeepalive(keepalive, &arguments);
  return OpenChannel(server, std::move(arguments));
}

absl::StatusOr<std::unique_ptr<LiveFetch>> LiveFetch::Open(const v1::LiveSource& source,
                                                           const DialOptions& coordinator,
                                                           const Keepalive& keepalive) {
  std::vector<std::string> causes;
  // In the order that the worker prefers. One that answers is enough.
  for (const std::string& address : source.addresses()) {
    DialOptions worker = coordinator;
    worker.is_coordinator = false;  // What a worker says of where it is: it gets no token.
    worker.address = address;
    auto channel = OpenLiveChannel(worker, keepalive);
    absl::Status status = channel.status();
    if (status.ok()) {
      auto fetch = std::make_unique<GrpcLiveFetch>(source.worker_id(), *std::move(channel));
      status = fetch->Begin(source.session());
      if (status.ok()) return fetch;
    }
    causes.push_back(absl::StrCat(address, ": ", status.message()));
  }
  return absl::UnavailableError(absl::StrCat("worker '", source.worker_id(),
                                             "' cannot be reached: ", absl::StrJoin(causes, "; ")));
}

}  // namespace tessera
