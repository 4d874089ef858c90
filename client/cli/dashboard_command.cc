#include "client/cli/dashboard_command.h"

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/ending_signals.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/worker_client.h"
#include "client/dashboard/dashboard_server.h"
#include "net/address.h"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string listen = "127.0.0.1:7080";
  bool insecure_listen = false;
  std::vector<std::string> workers;
};

std::string CheckListen(const std::string& text) {
  const absl::StatusOr<ServerAddress> address = ParseServerAddress(text);
  if (!address.ok()) return std::string(address.status().message());
  return address->reach == Reach::kUnix ? absl::StrCat("'", text, "' is not of the form HOST:PORT")
                                        : "";
}

std::string SocketOf(const std::string& worker) {
  return absl::StartsWith(worker, "unix:") ? worker : absl::StrCat("unix:", worker, "/worker.sock");
}

std::string CheckSocket(const std::string& worker) {
  const absl::StatusOr<ServerAddress> address = ParseServerAddress(SocketOf(worker));
  return address.ok() ? "" : std::string(address.status().message());
}

// One that does not answer may start later, so it is no reason to end. Without this only a rank's
// page would tell.
absl::Status NameSilentWorkers(const std::vector<Endpoint>& workers, std::ostream* err) {
  for (const Endpoint& endpoint : workers) {
    ASSIGN_OR_RETURN(const auto worker, WorkerClient::Create(endpoint));
    const absl::Status status = worker->GetStatus().status();
    if (status.ok()) continue;
    *err << "tessera: no worker answers at --worker " << endpoint.address
         << ", so the page has no operations of its ranks: " << status.message() << "\n"
         << std::flush;
  }
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags, const Console& console) {
  const EndingSignals signals;  // Before threads start.
  dashboard::ClusterEndpoints endpoints;
  endpoints.coordinator = flags.endpoint.Coordinator();
  for (const std::string& worker : flags.workers) {
    Endpoint& endpoint = endpoints.workers.emplace_back();
    endpoint.address = SocketOf(worker);
    endpoint.timeout = endpoints.coordinator.timeout;
  }
  HttpListener::Options listener;
  listener.address = flags.listen;
  listener.insecure = flags.insecure_listen;
  listener.insecure_flag = "--insecure-listen";
  ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(flags.listen));
  const bool is_local = address.reach == Reach::kLoopback;
  // The files are this client's for the coordinator; a browser on this node needs none.
  if (!is_local) listener.tls = endpoints.coordinator.tls;
  ASSIGN_OR_RETURN(const auto server, dashboard::DashboardServer::Start(endpoints, listener));
  RETURN_IF_ERROR(NameSilentWorkers(endpoints.workers, console.err));
  const bool is_v6 = absl::StrContains(address.host, ':');
  *console.out << "dashboard of " << endpoints.coordinator.address << " at http"
               << (listener.tls.empty() ? "" : "s") << "://" << (is_v6 ? "[" : "") << address.host
               << (is_v6 ? "]" : "") << ":" << server->port() << "/\n"
               << std::flush;
  while (signals.Wait(absl::Hours(1))) continue;
  return absl::OkStatus();
}

}  // namespace

void RegisterDashboardCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command =
      app->add_subcommand("dashboard", "serve a page with jobs, ranks and workers, until Ctrl-C");
  auto flags = std::make_shared<Flags>();
  command
      ->add_option("--listen", flags->listen,
                   "HOST:PORT of the page; port 0: a free one. An address that other nodes reach "
                   "needs the TLS files, also in the browser")
      ->check(CheckListen)
      ->capture_default_str();
  command->add_flag("--insecure-listen", flags->insecure_listen,
                    "permit an address that other nodes reach, without TLS");
  flags->endpoint.AddCoordinator(command);
  // Shorter than what a browser waits for.
  flags->endpoint.AddTimeout(command, "3s");
  command
      ->add_option(
          "--worker", flags->workers,
          "unix:PATH, or the --socket-dir, of a worker on this node, for the operations of "
          "its ranks; may be repeated")
      ->check(CheckSocket);
  command->callback(
      [flags, selected] { *selected = [flags](const Console& c) { return Run(*flags, c); }; });
}

}  // namespace tessera::cli
