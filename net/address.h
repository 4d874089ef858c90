// Where a server is, as flags and options say it, and which hosts can reach it there. Pure;
// thread-safe.
//
//   unix:/run/tessera/worker.sock           kUnix      the users that its mode allows
//   127.0.0.0/8, [::1], localhost           kLoopback  this machine
//   everything else: 0.0.0.0, names, ...    kNetwork   other machines
#ifndef TESSERA_NET_ADDRESS_H_
#define TESSERA_NET_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

enum class Reach { kUnix, kLoopback, kNetwork };

struct ServerAddress {
  Reach reach = Reach::kNetwork;
  std::string host;  // Without brackets; empty for kUnix.
  int port = 0;      // 0 to 65535.
  std::string path;  // Of kUnix.
};

// Whether it is this machine's own name, in full or not as the machine itself has it: a client that
// connects there stays on this machine, though others may reach a listener there.
bool IsThisMachine(absl::string_view host);

// Of "host:port", "[v6]:port" or "unix:path". Asks no resolver, so a name other than "localhost" is
// of the network whatever it stands for.
// Errors: InvalidArgument  anything else
absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_NET_ADDRESS_H_
