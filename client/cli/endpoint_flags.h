// The flags by which commands are told where to connect: --coordinator, --worker, --tls-*,
// --insecure-connect, --timeout.
#ifndef TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_
#define TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_

#include <string>

#include "client/cli/command.h"
#include "client/cli/endpoint.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace tessera::cli {

// Where systemd's unit has the coordinator listen, if there is one; else where it listens by
// itself.
std::string DefaultCoordinator();

class EndpointFlags {
 public:
  // The parser keeps pointers into this object, which must outlive it.
  void AddCoordinator(CLI::App* command);
  void AddWorker(CLI::App* command);
  // Call once, whichever of the two was added. `timeout`: the default, as "10s".
  void AddTimeout(CLI::App* command, const char* timeout = "10s");

  // In a command's callback: throws the parser's error where both were given.
  void CheckOnlyOne() const;
  bool has_worker() const { return !worker_address_.empty(); }
  Endpoint Coordinator() const;
  Endpoint Worker() const;

 private:
  absl::Duration Timeout() const;

  const CLI::App* command_ = nullptr;
  const CLI::Option* coordinator_ = nullptr;
  std::string coordinator_address_ = DefaultCoordinator();
  std::string worker_address_;
  std::string timeout_ = "10s";
  TlsFiles tls_;
  bool insecure_connect_ = false;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ENDPOINT_FLAGS_H_
