#include "client/cli/endpoint_flags.h"

#include <unistd.h>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "net/address.h"

namespace tessera::cli {
namespace {

std::string CheckCoordinator(const std::string& text) {
  const absl::StatusOr<ServerAddress> address = ParseServerAddress(text);
  if (!address.ok()) return std::string(address.status().message());
  if (address->reach == Reach::kUnix || address->port > 0) return "";
  return absl::StrCat("address '", text, "': nobody listens on port 0");
}

std::string CheckUnix(const std::string& text) {
  const absl::StatusOr<ServerAddress> address = ParseServerAddress(text);
  if (address.ok() && address->reach == Reach::kUnix) return "";
  return absl::StrCat("'", text, "' is not of the form unix:PATH");
}

std::string CheckTimeout(const std::string& text) {
  absl::Duration timeout;
  if (!absl::ParseDuration(text, &timeout)) {
    return absl::StrCat("'", text, "' is not a time like 500ms or 10s");
  }
  if (timeout <= absl::ZeroDuration()) return absl::StrCat("'", text, "' must be > 0");
  return timeout <= absl::Hours(24) ? "" : absl::StrCat("'", text, "' is longer than 24h");
}

}  // namespace

std::string DefaultCoordinator() {
  static constexpr char kSocket[] = "/run/tessera-coordinator/coordinator.sock";
  return access(kSocket, F_OK) == 0 ? absl::StrCat("unix:", kSocket) : "127.0.0.1:7070";
}

void EndpointFlags::AddCoordinator(CLI::App* command) {
  command_ = command;
  coordinator_ = command
                     ->add_option("--coordinator", coordinator_address_,
                                  "HOST:PORT or unix:PATH of the coordinator")
                     ->check(CheckCoordinator)
                     ->capture_default_str();
  CLI::Option* certificate =
      command->add_option("--tls-cert", tls_.certificate_path, "PEM file of this client");
  CLI::Option* key = command->add_option("--tls-key", tls_.key_path, "PEM file of this client");
  CLI::Option* ca = command->add_option(
      "--tls-ca", tls_.ca_path, "PEM file of the CA that signed the coordinator's certificate");
  certificate->needs(key)->needs(ca);
  key->needs(certificate);
  ca->needs(certificate);
  command->add_flag("--insecure-connect", insecure_connect_,
                    "permit a coordinator on another node without TLS");
}

void EndpointFlags::AddWorker(CLI::App* command) {
  command->add_option("--worker", worker_address_, "unix:PATH of a worker on this host")
      ->check(CheckUnix);
}

void EndpointFlags::CheckOnlyOne() const {
  if (!has_worker() || coordinator_->count() == 0) return;
  throw CLI::ValidationError(command_->get_name(),
                             "only one of --coordinator and --worker may be given");
}

void EndpointFlags::AddTimeout(CLI::App* command, const char* timeout) {
  timeout_ = timeout;
  command->add_option("--timeout", timeout_, "for each call")
      ->check(CheckTimeout)
      ->capture_default_str();
}

Endpoint EndpointFlags::Coordinator() const {
  return {coordinator_address_, tls_, Timeout(), insecure_connect_};
}

// Without TLS files: a worker's socket is local.
Endpoint EndpointFlags::Worker() const { return {worker_address_, {}, Timeout()}; }

absl::Duration EndpointFlags::Timeout() const {
  absl::Duration timeout = Endpoint().timeout;
  // CheckTimeout has accepted the text.
  absl::ParseDuration(timeout_, &timeout);
  return timeout;
}

}  // namespace tessera::cli
