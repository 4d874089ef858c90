// The coordinator's service LiveState in its own messages; programs have live_reader.h, which is
// made of it. Thread-safe; no gRPC type shows here.
//
// Every error names the coordinator's address. In addition to what the service returns: Unavailable
// if nothing answers there, or not any more; DeadlineExceeded where a list takes longer than the
// timeout.
#ifndef TESSERA_CLIENT_LIVE_LIVE_CLIENT_H_
#define TESSERA_CLIENT_LIVE_LIVE_CLIENT_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/keepalive.h"
#include "net/transport_security.h"
#include "proto/live_state.pb.h"

namespace tessera {

class LiveClient {
 public:
  // Errors: as OpenChannel of net/credentials.h. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<LiveClient>> Create(
      const DialOptions& coordinator, absl::Duration list_timeout = absl::Seconds(10),
      const Keepalive& keepalive = {});
  virtual ~LiveClient() = default;

  virtual absl::StatusOr<std::vector<v1::LiveTensorInfo>> List(const v1::LiveStateQuery& query) = 0;

  enum class Way { kDirectIfPossible, kThroughCoordinator };
  using Take = absl::FunctionRef<absl::Status(const v1::LiveStateReply&)>;
  // Calls `take` with each reply in order: the begin, then each tensor and its pieces. The pieces
  // come from the workers themselves where this host reaches them all, unless `way` says otherwise.
  // An error of `take` ends the call and is returned as it is. There is no deadline for the pieces:
  // `keepalive` detects a coordinator or worker that does not answer.
  virtual absl::Status Get(const v1::LiveStateQuery& query, Way way, Take take) = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_LIVE_CLIENT_H_
