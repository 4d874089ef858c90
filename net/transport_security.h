// How a connection is protected: the one rule that every server and every client keeps.
//
//                     no TLS files               TLS files       TLS files, but not all three
//   unix socket       plain                      plain           refused
//   loopback          plain                      mutual TLS      refused
//   network           refused; plain if          mutual TLS      refused
//                     permitted by name
//
// A Unix socket is protected by its mode instead: 0600, which lets in its own user and root. Pure
// values and functions, no gRPC; thread-safe.
#ifndef TESSERA_NET_TRANSPORT_SECURITY_H_
#define TESSERA_NET_TRANSPORT_SECURITY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Files in PEM form, for mutual TLS: all three or none. The peer's certificate must be signed by
// `ca`, and a server's must name the host that clients dial.
struct TlsFiles {
  std::string certificate_path;
  std::string key_path;
  std::string ca_path;

  bool empty() const { return certificate_path.empty() && key_path.empty() && ca_path.empty(); }
  bool complete() const {
    return !certificate_path.empty() && !key_path.empty() && !ca_path.empty();
  }
};

// Where a client finds a server, and how it speaks to it.
struct DialOptions {
  std::string address;            // "host:port" or "unix:path".
  TlsFiles tls = {};              // Read at each new connection, so renewed files come into use.
  bool insecure_connect = false;  // Permits to dial other machines without TLS.
  // The user named this server as the coordinator, so it may get the user's token (access_token.h).
  bool is_coordinator = true;
};

enum class Side { kListen, kDial };
enum class Protection { kPlain, kMutualTls };

// The table above. `permit_insecure` is what --insecure-listen or --insecure-connect says.
// Errors: InvalidArgument     a malformed address; some but not all TLS files
//         FailedPrecondition  an address of the network, no TLS files and no permission
absl::StatusOr<Protection> ChooseProtection(Side side, absl::string_view address,
                                            const TlsFiles& tls, bool permit_insecure);

}  // namespace tessera

#endif  // TESSERA_NET_TRANSPORT_SECURITY_H_
