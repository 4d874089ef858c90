// How a client notices that the machine of its server is gone, which closes no connection: a ping
// is sent over a connection that says nothing, and if that is not answered in time all its calls
// end with Unavailable. A server that is only slow answers. Plain values, no gRPC.
#ifndef TESSERA_NET_KEEPALIVE_H_
#define TESSERA_NET_KEEPALIVE_H_

#include "absl/time/time.h"

namespace tessera {

struct Keepalive {
  // Of silence, before a ping; less than a second counts as one, as servers permit no more.
  // InfiniteDuration: none is sent.
  absl::Duration interval = absl::Seconds(20);
  // For the answer; at least a second, and better well above 5 s: a client that waits in no call,
  // between two of a stream, looks for answers only so often, and would take a server for silent
  // that has answered.
  absl::Duration timeout = absl::Seconds(10);
};

}  // namespace tessera

#endif  // TESSERA_NET_KEEPALIVE_H_
