#include "client/cli/endpoint_flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::cli {
namespace {

constexpr absl::string_view kUnixPrefix = "unix:";

bool IsUnixAddress(absl::string_view text) {
  return text.size() > kUnixPrefix.size() && text.substr(0, kUnixPrefix.size()) == kUnixPrefix;
}

std::string CheckHostPort(const std::string& text) {
  if (IsUnixAddress(text)) return "";
  const size_t colon = text.rfind(':');
  int port = 0;
  const bool is_valid = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 1 &&
                        port <= 65535;
  return is_valid ? "" : "'" + text + "' is neither HOST:PORT nor unix:PATH";
}

std::string CheckUnix(const std::string& text) {
  return IsUnixAddress(text) ? "" : "'" + text + "' is not of the form unix:PATH";
}

std::string CheckTimeout(const std::string& text) {
  absl::Duration timeout;
  const bool is_valid = absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration() &&
                        timeout <= absl::Hours(24);
  return is_valid ? "" : "'" + text + "' is not a time like 500ms or 10s";
}

}  // namespace

void EndpointFlags::AddCoordinator(CLI::App* command, bool required) {
  command->add_option("--coordinator", coordinator_address_, "HOST:PORT of the coordinator")
      ->required(required)
      ->check(CheckHostPort);
  CLI::Option* certificate =
      command->add_option("--tls-cert", tls_.certificate_path, "PEM file of this client");
  CLI::Option* key = command->add_option("--tls-key", tls_.key_path, "PEM file of this client");
  CLI::Option* ca =
      command->add_option("--tls-ca", tls_.ca_path, "PEM file that signed the coordinator's");
  certificate->needs(key)->needs(ca);
  key->needs(certificate);
  ca->needs(certificate);
  command->add_flag("--insecure-connect", insecure_connect_,
                    "permit a coordinator of another machine, without TLS");
}

void EndpointFlags::AddWorker(CLI::App* command) {
  command->add_option("--worker", worker_address_, "unix:PATH of a worker on this host")
      ->check(CheckUnix);
}

void EndpointFlags::AddTimeout(CLI::App* command) {
  command->add_option("--timeout", timeout_, "of each call")
      ->check(CheckTimeout)
      ->capture_default_str();
}

Endpoint EndpointFlags::Coordinator() const {
  return {coordinator_address_, tls_, Timeout(), insecure_connect_};
}

Endpoint EndpointFlags::Worker() const { return {worker_address_, {}, Timeout()}; }

absl::Duration EndpointFlags::Timeout() const {
  absl::Duration timeout = Endpoint().timeout;
  absl::ParseDuration(timeout_, &timeout);
  return timeout;
}

}  // namespace tessera::cli
