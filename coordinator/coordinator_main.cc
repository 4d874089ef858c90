// The coordinator daemon: turns flags into options, and ends cleanly on SIGTERM or SIGINT.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "coordinator/service/server.h"
#include "net/address.h"

namespace tessera::coordinator {
namespace {

struct Flags {
  CoordinatorServer::Options server;
  std::string worker_timeout = "10s";
  std::string live_client_timeout = "1m";
  std::string request_timeout = "10s";
  std::string heartbeat_interval = "1s";
  std::string prepare_timeout = "1m";
  std::string hang_after = "30s";
  std::string log_level = "info";
  std::string port_file;
  std::string fault_points;
  bool ephemeral = false;
  std::vector<std::string> listen;
};

void AddLimits(CLI::App* app, CoordinatorServer::Options* options) {
  constexpr int64_t kMaxBytes = int64_t{1} << 50;
  app->add_option("--max-calls", options->max_calls,
                  "concurrent calls of clients, and as many that wait; one client has up to half")
      ->check(WholeNumber(2, 1 << 20))
      ->capture_default_str();
  // Here, and not by default: in a server that shares its process, the rest would count too.
  options->max_memory_bytes = int64_t{512} << 20;
  app->add_option("--max-memory-bytes", options->max_memory_bytes,
                  "limit for this process; above five eighths of it, the requests and replies that "
                  "take longest are ended; 0: none")
      ->check(WholeNumber(0, kMaxBytes))
      ->capture_default_str();
  app->add_option("--max-jobs-of-owner", options->max_jobs_of_owner,
                  "jobs of one owner that is not an operator")
      ->check(WholeNumber(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-model-bytes-of-owner", options->max_model_bytes_of_owner,
                  "memory for the names and shapes of the models of such an owner's jobs")
      ->check(WholeNumber(1, kMaxBytes))
      ->capture_default_str();
  app->add_option("--max-model-bytes", options->max_model_bytes, "the same, for all jobs together")
      ->check(WholeNumber(1, kMaxBytes))
      ->capture_default_str();
}

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option(
      "--listen", flags->listen,
      "host:port, where port 0 means any, or unix:PATH, where each user of this node is "
      "identified; may be given once for each kind [127.0.0.1:7070]");
  app->add_option("--grant", flags->server.grants,
                  "ROLE=IDENTITY: operator=uid:1000, reader=certificate:NAME, worker=uid:1000, "
                  "worker:ID=certificate:NAME; may be repeated");
  app->add_option(
      "--save-root", flags->server.save_roots,
      "folder below which clients may request checkpoints; may be repeated; without it, "
      "only the coordinator's own user and root may request them, in any folder");
  app->add_option("--journal", flags->server.journal_path,
                  "file with the coordinator's state; created if missing");
  app->add_flag("--ephemeral", flags->ephemeral,
                "no journal: the state ends with this process, and workers that hold jobs then "
                "wait for a coordinator of their cluster");
  app->add_option("--cluster-id", flags->server.cluster_id,
                  "with a new journal, after a loss: take over what the workers of this cluster "
                  "hold; workers' logs name their cluster");
  app->add_flag("--older-journal", flags->server.older_journal,
                "accept an older copy of the journal, if the newest is lost: take over later "
                "changes from the workers. No other coordinator of the cluster may run");
  app->add_flag("--insecure-listen", flags->server.insecure_listen,
                "permit an address that others can reach, without TLS");
  app->add_option("--tls-cert", flags->server.tls.certificate_path, "PEM file");
  app->add_option("--tls-key", flags->server.tls.key_path, "PEM file");
  app->add_option("--tls-ca", flags->server.tls.ca_path, "PEM file; clients must be signed by it");
  app->add_option("--http-listen", flags->server.http_listen_address,
                  "host:port for /metrics (Prometheus), /healthz and /readyz; without it there is "
                  "no HTTP");
  app->add_flag("--insecure-http-listen", flags->server.insecure_http_listen,
                "serve --http-listen without TLS, at any address and with TLS files too");
  app->add_option("--worker-timeout", flags->worker_timeout,
                  "silence after which a worker's jobs wait")
      ->capture_default_str();
  app->add_option("--heartbeat-interval", flags->heartbeat_interval,
                  "how often workers send heartbeats")
      ->capture_default_str();
  app->add_option("--prepare-timeout", flags->prepare_timeout,
                  "time limit for a worker to prepare an epoch")
      ->capture_default_str();
  app->add_option("--hang-after", flags->hang_after,
                  "how long a rank may keep others waiting at an operation before an event names "
                  "it, at least two heartbeats; 0: no rank is watched")
      ->capture_default_str();
  app->add_flag("--end-hung-epochs", flags->server.end_hung_epochs,
                "end the epoch of a rank that --hang-after names, with that as the reason");
  app->add_option(
         "--live-client-timeout", flags->live_client_timeout,
         "time limit for a client to take a reply, or a piece of a job's state that it reads or "
         "sets")
      ->capture_default_str();
  app->add_option("--request-timeout", flags->request_timeout,
                  "time limit for a client to send a request, or a stream's first message")
      ->capture_default_str();
  AddLimits(app, &flags->server);
  app->add_option("--log-level", flags->log_level, "debug, info, warning, error")
      ->capture_default_str();
  app->add_option("--port-file", flags->port_file, "file to write the port to once it is open");
  app->add_option("--fault-points", flags->fault_points, "for tests: name=kill@1,name=fail@2");
}

absl::Status ParseDurationFlag(const std::string& name, const std::string& text,
                               absl::Duration* duration) {
  if (absl::ParseDuration(text, duration)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " '", text, "': not like 500ms or 10s"));
}

absl::Status TakeListenFlags(const std::vector<std::string>& listen,
                             CoordinatorServer::Options* options) {
  if (listen.empty()) return absl::OkStatus();
  // The default address is for a coordinator that is given none.
  options->listen_address.clear();
  for (const std::string& text : listen) {
    ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(text));
    std::string* const place =
        address.reach == Reach::kUnix ? &options->local_socket : &options->listen_address;
    if (!place->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--listen '", text, "': one address of this kind is given already"));
    }
    *place = address.reach == Reach::kUnix ? address.path : text;
  }
  return absl::OkStatus();
}

// Refuses a path where no port file can be created, before any client is served.
absl::Status CheckPortFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("--port-file '", path, "'");
  if (std::filesystem::is_directory(path)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": is a folder"));
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    return ErrnoStatus(errno, what);
  }
  return absl::OkStatus();
}

// Through a rename, so that a reader of the file sees the whole number.
absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("--port-file '", path, "'");
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  errno = 0;
  std::ofstream file(temporary);
  file << port << "\n";
  file.close();
  if (!file) return ErrnoStatus(errno == 0 ? EIO : errno, what);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, what);
  return absl::OkStatus();
}

absl::Status Run(Flags flags, const sigset_t& ending_signals) {
  ASSIGN_OR_RETURN(const auto manager, ServiceManager::FromEnvironment());
  RETURN_IF_ERROR(SetLogLevel(flags.log_level));
  if (flags.server.journal_path.empty() != flags.ephemeral) {
    return absl::InvalidArgumentError(
        flags.ephemeral ? "--ephemeral and --journal: give one of them"
                        : "--journal FILE is needed, so that a restart knows the jobs; for tests, "
                          "--ephemeral does without");
  }
  RETURN_IF_ERROR(TakeListenFlags(flags.listen, &flags.server));
  RETURN_IF_ERROR(ArmFaultPointsFromFlag(flags.fault_points));
  RETURN_IF_ERROR(
      ParseDurationFlag("--worker-timeout", flags.worker_timeout, &flags.server.worker_timeout));
  RETURN_IF_ERROR(ParseDurationFlag("--heartbeat-interval", flags.heartbeat_interval,
                                    &flags.server.heartbeat_interval));
  RETURN_IF_ERROR(
      ParseDurationFlag("--prepare-timeout", flags.prepare_timeout, &flags.server.prepare_timeout));
  RETURN_IF_ERROR(ParseDurationFlag("--hang-after", flags.hang_after, &flags.server.hang_after));
  RETURN_IF_ERROR(ParseDurationFlag("--live-client-timeout", flags.live_client_timeout,
                                    &flags.server.live_client_timeout));
  RETURN_IF_ERROR(
      ParseDurationFlag("--request-timeout", flags.request_timeout, &flags.server.request_timeout));
  RETURN_IF_ERROR(CheckPortFile(flags.port_file));
  ASSIGN_OR_RETURN(const auto server, CoordinatorServer::Start(flags.server));
  // Only now, because a process that reads the file may connect at once.
  RETURN_IF_ERROR(WritePortFile(flags.port_file, server->port()));
  // After the port file: units that are started after this one may use it at once.
  manager->Ready();
  RETURN_IF_ERROR(manager->Watch([&server] { return server->AwaitProgress(); }));
  int signal = 0;
  sigwait(&ending_signals, &signal);
  TESSERA_LOG(INFO, "ending on signal {}", signal);
  manager->Stopping();
  server->Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::coordinator

int main(int argc, char** argv) {
  // Return freed memory to the system. Otherwise each of many threads may keep some of what long
  // requests and replies took.
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  CLI::App app(
      "Tessera's coordinator: places jobs, checks their execution order, commits their steps.",
      "tessera-coordinator");
  app.set_version_flag("--version", absl::StrCat("tessera-coordinator ", tessera::kVersion));
  tessera::coordinator::Flags flags;
  tessera::coordinator::AddFlags(&app, &flags);
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  // Blocked before any thread starts, so that only the sigwait above sees them.
  sigset_t ending_signals;
  sigemptyset(&ending_signals);
  sigaddset(&ending_signals, SIGTERM);
  sigaddset(&ending_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending_signals, nullptr);
  tessera::SetLogContext("coordinator");
  const absl::Status status = tessera::coordinator::Run(std::move(flags), ending_signals);
  if (status.ok()) return 0;
  std::cerr << "tessera-coordinator: " << status << "\n";
  return 1;
}
