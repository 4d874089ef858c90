// Where a server is and how to speak to it. Plain values.
#ifndef TESSERA_CLIENT_CLI_ENDPOINT_H_
#define TESSERA_CLIENT_CLI_ENDPOINT_H_

#include <string>

#include "absl/time/time.h"

namespace tessera::cli {

// PEM files for mutual TLS: all three or none.
struct TlsFiles {
  std::string certificate_path;
  std::string key_path;
  std::string ca_path;
};

struct Endpoint {
  std::string address;  // "host:port" or "unix:/path".
  TlsFiles tls;
  absl::Duration timeout = absl::Seconds(10);  // Of each call.
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ENDPOINT_H_
