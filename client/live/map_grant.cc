#include "client/live/map_grant.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "client/live/live_fetch.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc_status.h"
#include "proto/live_map.grpc.pb.h"

namespace tessera {
namespace {

class GrpcMapGrant : public MapGrant {
 public:
  GrpcMapGrant(std::string coordinator, const std::shared_ptr<grpc::Channel>& channel)
      : coordinator_(std::move(coordinator)), stub_(v1::LiveMap::NewStub(channel)) {}
  ~GrpcMapGrant() override {
    if (stream_ == nullptr) return;
    // Ends the thread's read, which is joined before Finish.
    context_.TryCancel();
    if (watch_.joinable()) watch_.join();
    (void)stream_->Finish();
  }
  bool has_ended() const override {
    absl::MutexLock lock(&mu_);
    return !why_ended_.ok();
  }
  absl::Status why_ended() const override {
    absl::MutexLock lock(&mu_);
    return why_ended_;
  }

  absl::Status Begin(const v1::LiveStateQuery& query) {
    stream_ = stub_->MapLiveState(&context_);
    v1::LiveMapReply reply;
    if (stream_->Write(query)) {
      while (stream_->Read(&reply)) {
        if (reply.has_tensor()) tensors_.push_back(std::move(*reply.mutable_tensor()));
        if (!reply.has_ready()) continue;
        ready_ = std::move(*reply.mutable_ready());
        ASSIGN_OR_RETURN(watch_, StartThread("a map of live state", [this] { AwaitEnd(); }));
        return absl::OkStatus();
      }
    }
    // Finish says why the call ended.
    const absl::Status status = FromGrpcStatus(stream_->Finish());
    stream_.reset();
    return Annotate(status.ok() ? absl::DataLossError("the call ended too early") : status,
                    absl::StrCat("coordinator ", coordinator_));
  }

 private:
  void AwaitEnd() {
    v1::LiveMapReply reply;
    while (stream_->Read(&reply)) {
      if (!reply.has_ended()) continue;
      End(absl::Status(static_cast<absl::StatusCode>(reply.ended().code()),
                       reply.ended().message()));
      // Answers the end, so that the coordinator may close the call.
      stream_->WritesDone();
    }
    End(absl::UnavailableError(absl::StrCat("coordinator ", coordinator_, " is gone")));
  }
  void End(const absl::Status& why) {
    absl::MutexLock lock(&mu_);
    // The first cause. The end of the stream follows from it.
    if (why_ended_.ok()) why_ended_ = why;
  }

  const std::string coordinator_;
  const std::unique_ptr<v1::LiveMap::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LiveStateQuery, v1::LiveMapReply>> stream_;
  std::thread watch_;
  mutable absl::Mutex mu_;
  absl::Status why_ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<MapGrant>> MapGrant::Open(const DialOptions& coordinator,
                                                         const Keepalive& keepalive,
                                                         const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(const auto channel, OpenLiveChannel(coordinator, keepalive));
  auto grant = std::make_unique<GrpcMapGrant>(coordinator.address, channel);
  RETURN_IF_ERROR(grant->Begin(query));
  return grant;
}

}  // namespace tessera
