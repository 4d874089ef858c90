// Where a server is and how to speak to it. Plain values.
#ifndef TESSERA_CLIENT_CLI_ENDPOINT_H_
#define TESSERA_CLIENT_CLI_ENDPOINT_H_

#include <string>

#include "absl/time/time.h"
#include "net/keepalive.h"
#include "net/transport_security.h"

namespace tessera::cli {

struct Endpoint {
  std::string address;  // "host:port" or "unix:/path".
  TlsFiles tls = {};
  absl::Duration timeout = absl::Seconds(10);  // Of each call, but reads and puts of values.
  bool insecure_connect = false;               // Permits other machines without TLS.
  Keepalive keepalive = {};

  DialOptions dial() const { return {address, tls, insecure_connect}; }
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ENDPOINT_H_
