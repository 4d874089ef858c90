// What workers have of a state, fetched from them: the parts of a direct query's reply.
// Thread-compatible; no gRPC type shows here.
#ifndef TESSERA_CLIENT_LIVE_LIVE_FETCH_H_
#define TESSERA_CLIENT_LIVE_LIVE_FETCH_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "net/keepalive.h"
#include "net/transport_security.h"
#include "proto/live_state.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tessera {

// With the limits that all readers of live state share; as OpenChannel of net/credentials.h.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenLiveChannel(const DialOptions& server,
                                                               const Keepalive& keepalive);

class LiveFetch {
 public:
  // Tries the source's addresses, each with the protection of `coordinator`, until one answers.
  // Errors: Unavailable  none does (names the worker and each address with its cause)
  static absl::StatusOr<std::unique_ptr<LiveFetch>> Open(const v1::LiveSource& source,
                                                         const DialOptions& coordinator,
                                                         const Keepalive& keepalive);
  virtual ~LiveFetch() = default;  // Ends the call.

  // The next piece. Errors, naming the worker: as LiveFetch.Fetch (proto/live_state.proto);
  // DataLoss  there is none; Unavailable  its machine does not answer, as `keepalive` has it.
  virtual absl::Status Next(v1::LivePiece* piece) = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_LIVE_FETCH_H_
