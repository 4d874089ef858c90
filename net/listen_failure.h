// Why a server could not listen, which gRPC does not say. Thread-safe.
#ifndef TESSERA_NET_LISTEN_FAILURE_H_
#define TESSERA_NET_LISTEN_FAILURE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "net/address.h"

namespace tessera {

// Why listening on `address`, of a host and port, failed, found by trying it: AlreadyExists where
// another process listens there, PermissionDenied, NotFound (no such host), else Unavailable.
absl::Status DiagnoseListenFailure(const ServerAddress& address, absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_NET_LISTEN_FAILURE_H_
