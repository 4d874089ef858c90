// Sockets that listen, over TCP. Thread-safe.
#ifndef TESSERA_NET_LISTEN_TCP_H_
#define TESSERA_NET_LISTEN_TCP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "net/address.h"

namespace tessera {

struct TcpSockets {
  int port = 0;
  std::vector<UniqueFd> sockets;  // One for each address that the host's name stands for.
};

// Of a host and port; port 0: any. 0.0.0.0 is each address of this machine, those of IPv6 too.
// Accepting from the sockets does not block. `text` names the address in errors.
// Errors: AlreadyExists     another process listens there
//         PermissionDenied  the port is for root alone
//         NotFound          no such host
//         as ErrnoStatus    what else the kernel refuses
absl::StatusOr<TcpSockets> ListenTcp(const ServerAddress& address, absl::string_view text);

// Why a library that gives no reason could not listen there, found by trying it: an error of
// ListenTcp, or Unavailable where that can listen.
absl::Status DiagnoseListenFailure(const ServerAddress& address, absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_NET_LISTEN_TCP_H_
