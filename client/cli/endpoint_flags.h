// The flags by which commands are told where to connect: --coordinator, --worker, --tls-*,
// --insecure-connect, --timeout.
#ifndef TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_
#define TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_

#include <string>

#include "client/cli/command.h"
#include "client/cli/endpoint.h"

namespace tessera::cli {

class EndpointFlags {
 public:
  // The parser keeps pointers into this object, which must outlive it.
  void AddCoordinator(CLI::App* command, bool required);
  void AddWorker(CLI::App* command);
  // Call once, whichever of the two was added.
  void AddTimeout(CLI::App* command);

  bool has_coordinator() const { return !coordinator_address_.empty(); }
  bool has_worker() const { return !worker_address_.empty(); }
  Endpoint Coordinator() const;
  Endpoint Worker() const;

 private:
  absl::Duration Timeout() const;

  std::string coordinator_address_;
  std::string worker_address_;
  std::string timeout_ = "10s";
  TlsFiles tls_;
  bool insecure_connect_ = false;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_
