// How a client notices that the machine of its server is gone, which closes no connection: a ping
// is sent over a connection that says nothing, and if that is not answered in time all its calls
// end with Unavailable. A server that is only slow answers. Plain values, no gRPC.
#ifndef TESSERA_NET_KEEPALIVE_H_
#define TESSERA_NET_KEEPALIVE_H_

#include "absl/time/time.h"

namespace tessera {

struct Keepalive {
  absl::Duration interval = absl::Seconds(20);  // Of silence; at least a second.
  absl::Duration timeout = absl::Seconds(10);   // For the answer.
};

}  // namespace tessera

#endif  // TESSERA_NET_KEEPALIVE_H_
