// The gRPC service of hand-overs (proto/hand_over.proto). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hand_over/hand_over_reader.h"
#include "coordinator/service/serve.h"
#include "proto/hand_over.pb.h"

namespace tessera::coordinator {

class HandOverService {
 public:
  // `host`, `gate` and `hub` outlive this.
  HandOverService(CoordinatorHost* host, const Gate* gate, LiveSessions* hub,
                  const LiveTimes& times)
      : host_(host), gate_(gate), hub_(hub), times_(times) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status Offer(ServedCall* call, const v1::OfferRequest& request, v1::HandOverInfo* reply);
  absl::Status RunOffer(ServedCall* call, const v1::OfferRequest& request, v1::HandOverInfo* reply);
  absl::Status AwaitEnd(ServedCall* call, const v1::AwaitEndRequest& request,
                        v1::HandOverInfo* reply);
  absl::Status Cancel(ServedCall* call, const v1::CancelHandOverRequest& request,
                      v1::HandOverInfo* reply);
  absl::Status Get(ServedCall* call, const v1::GetHandOverRequest& request,
                   v1::HandOverInfo* reply);
  absl::Status Read(CallStream<v1::ReadHandOverRequest, v1::HandOverReply>* stream,
                    v1::ReadHandOverRequest request);
  absl::Status TakeOver(ServedCall* call, const v1::TakeOverRequest& request,
                        v1::HandOverInfo* reply);
  absl::Status RunTakeOver(ServedCall* call, const v1::TakeOverRequest& request,
                           v1::HandOverInfo* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  LiveSessions* const hub_;
  const LiveTimes times_;
  JobPlaces places_{4};  // Of reads.
  std::atomic<int64_t> next_call_{1};
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_SERVICE_H_
