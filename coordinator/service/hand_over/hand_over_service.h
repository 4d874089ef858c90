// The gRPC service of hand-overs (proto/hand_over.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_

#include <atomic>

#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hand_over/hand_over_reader.h"
#include "coordinator/service/live/live_hub.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/hand_over.grpc.pb.h"

namespace tessera::coordinator {

class HandOverService : public v1::HandOvers::StreamedService {
 public:
  // `host`, `gate` and `hub` outlive this.
  HandOverService(CoordinatorHost* host, const Gate* gate, LiveHub* hub, const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}

  grpc::Status StreamedOffer(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::OfferRequest, v1::HandOverInfo>* stream) override;
  grpc::Status StreamedAwaitEnd(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::AwaitEndRequest, v1::HandOverInfo>* stream) override;
  grpc::Status StreamedCancel(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::CancelHandOverRequest, v1::HandOverInfo>* stream) override;
  grpc::Status StreamedGet(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetHandOverRequest, v1::HandOverInfo>* stream) override;
  grpc::Status StreamedRead(
      grpc::ServerContext* context,
      grpc::ServerSplitStreamer<v1::ReadHandOverRequest, v1::HandOverReply>* stream) override;
  grpc::Status StreamedTakeOver(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::TakeOverRequest, v1::HandOverInfo>* stream) override;

 private:
  absl::Status RunOffer(grpc::ServerContext* context, const v1::OfferRequest& request,
                        v1::HandOverInfo* reply);
  absl::Status RunAwaitEnd(grpc::ServerContext* context, const v1::AwaitEndRequest& request,
                           v1::HandOverInfo* reply);
  absl::Status RunCancel(grpc::ServerContext* context, const v1::CancelHandOverRequest& request,
                         v1::HandOverInfo* reply);
  absl::Status RunGet(grpc::ServerContext* context, EnteredCall* entered,
                      const v1::GetHandOverRequest& request, v1::HandOverInfo* reply);
  absl::Status RunTakeOver(grpc::ServerContext* context, const v1::TakeOverRequest& request,
                           v1::HandOverInfo* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  LiveHub* const hub_;
  const LiveTimes times_;
  ReadingPlaces places_;
  std::atomic<int64_t> next_call_{1};
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_
