// The calls of hand-overs that trainers and people make (proto/hand_over.proto). Blocking;
// thread-compatible.
#ifndef TESSERA_CLIENT_RESIZE_HAND_OVER_RPC_H_
#define TESSERA_CLIENT_RESIZE_HAND_OVER_RPC_H_

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/transport_security.h"
#include "proto/hand_over.pb.h"

namespace tessera {

// Each tries again while the coordinator is away, until `deadline`; all return DeadlineExceeded
// then, with the address and the last cause. Other errors: see proto/.
class HandOverRpc {
 public:
  explicit HandOverRpc(DialOptions coordinator) : coordinator_(std::move(coordinator)) {}

  absl::StatusOr<v1::HandOverInfo> Offer(const v1::OfferRequest& request, absl::Time deadline);
  absl::StatusOr<v1::HandOverInfo> AwaitEnd(const v1::AwaitEndRequest& request,
                                            absl::Time deadline);
  absl::StatusOr<v1::HandOverInfo> Get(const v1::GetHandOverRequest& request, absl::Time deadline);
  absl::StatusOr<v1::HandOverInfo> Cancel(const v1::CancelHandOverRequest& request,
                                          absl::Time deadline);
  absl::StatusOr<v1::HandOverInfo> TakeOver(const v1::TakeOverRequest& request,
                                            absl::Time deadline);

 private:
  const DialOptions coordinator_;
};

// One stream of HandOvers.Read.
class HandOverStream {
 public:
  // Connects at the first Next. Errors: as OpenChannel.
  static absl::StatusOr<std::unique_ptr<HandOverStream>> Open(
      const DialOptions& coordinator, const v1::ReadHandOverRequest& request);
  virtual ~HandOverStream() = default;  // Cancels what is left.
  // Errors: Unavailable  the connection, or a worker; others of proto/; DataLoss  it ended too soon
  virtual absl::StatusOr<v1::HandOverReply> Next() = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_RESIZE_HAND_OVER_RPC_H_
