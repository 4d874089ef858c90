// Ends a connection of a gRPC server, which has no means for it. Stateless.
#ifndef TESSERA_NET_END_CONNECTION_H_
#define TESSERA_NET_END_CONNECTION_H_

#include "absl/strings/string_view.h"

namespace tessera {

// The one whose other side gRPC calls `peer`: "fd:17" (local_listener.h), "ipv4:127.0.0.1:7070" or
// "ipv6:%5B::1%5D:7070". The caller has a call of it, so that its descriptor is no other's
// meanwhile. Returns whether there is one.
bool EndConnection(absl::string_view peer);

}  // namespace tessera

#endif  // TESSERA_NET_END_CONNECTION_H_
