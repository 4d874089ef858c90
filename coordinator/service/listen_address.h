// Addresses that a server may listen on. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
#define TESSERA_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::coordinator {

struct ListenAddress {
  std::string host;  // Without brackets.
  int port = 0;
  bool is_loopback = false;  // 127.0.0.0/8, ::1, "localhost".
};

// Of "host:port" or "[v6]:port".
// Errors: InvalidArgument  anything else
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Why listening on `address` failed, found by trying it: AlreadyExists where another process
// listens there, PermissionDenied, NotFound (no such host), else Unavailable.
absl::Status DiagnoseListenFailure(const ListenAddress& address, absl::string_view text);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
