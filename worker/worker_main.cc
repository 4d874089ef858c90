// tessera-worker: the daemon of a node.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/closed_process.h"
#include "base/command_line.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "checkpoint/storage/direct_writes.h"
#include "job/field_limits.h"
#include "worker/device/cuda/cuda_versions.h"
#include "worker/executor/machine_devices.h"
#include "worker/service/socket_folder.h"
#include "worker/service/worker_server.h"
#include "worker/signals.h"
#include "worker/vault/memory_vault.h"

namespace tessera {
namespace {

struct Flags {
  WorkerServer::Options server;
  std::string gpu;
  std::string log_level = "info";
  std::string keep_memory_for = "10m";
  int64_t direct_write_bytes = kDirectFromBytes;
  std::string fault_points;
  std::string executor_faults;
  bool debuggable = false;
};

// As a CLI::Validator: empty where it is one.
std::string IsGpu(const std::string& text) {
  const absl::StatusOr<DeviceName> name = ParseDeviceName(text);
  if (!name.ok()) return std::string(name.status().message());
  return name->is_host() ? "-1 is not a GPU" : "";
}

void AddCoordinatorFlags(CLI::App* app, WorkerServer::Options* options) {
  app->add_option("--coordinator", options->coordinator_address, "host:port of the coordinator")
      ->required();
  app->add_option("--tls-cert", options->tls.certificate_path, "PEM file of this worker");
  app->add_option("--tls-key", options->tls.key_path, "PEM file of this worker");
  app->add_option("--tls-ca", options->tls.ca_path,
                  "PEM file of the CA that signed the coordinator's certificate");
  app->add_flag("--insecure-connect", options->insecure_connect,
                "permit a coordinator on another node without TLS");
  app->add_option("--worker-id", options->worker_id, "name of this worker, unique in the cluster")
      ->required();
}

std::string ExecutorBesideThis() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
         "tessera-executor";
}

void AddServerFlags(CLI::App* app, WorkerServer::Options* options) {
  app->add_option("--devices", options->num_devices, "ranks that this node can hold")
      ->default_val(1)
      ->check(WholeNumber(1, kMaxDevices));
  app->add_option("--max-ranks-of-job", options->max_ranks_of_job,
                  "how many of these one job can have; 0: all")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxDevices));
  app->add_option(
      "--data-host", options->data_host,
      "IP address at which ranks of other workers reach this worker's; without it, no job "
      "that needs several workers is placed here");
  app->add_flag("--insecure-data", options->insecure_data,
                "permit a --data-host that other nodes reach: ranks' data is not encrypted");
  app->add_option("--socket-dir", options->socket_dir, "folder of the sockets for trainers")
      ->required();
  app->add_option("--spool-folder", options->spool_folder,
                  "folder on a disk for the state that clients read or set")
      ->capture_default_str();
  app->add_option("--state-listen", options->state_listen_address,
                  "host:port where clients on other nodes fetch jobs' states; without it they get "
                  "them through the coordinator");
  app->add_flag("--insecure-state-listen", options->insecure_state_listen,
                "permit a --state-listen that other nodes reach, without TLS");
  app->add_option("--http-listen", options->http_listen_address,
                  "host:port for /metrics (Prometheus), /healthz and /readyz; without it there is "
                  "no HTTP");
  app->add_flag("--insecure-http-listen", options->insecure_http_listen,
                "serve --http-listen without TLS, at any address and with TLS files too");
  options->executor_binary = ExecutorBesideThis();
  app->add_option("--executor-binary", options->executor_binary,
                  "path of tessera-executor; without it, the one beside this program");
  app->add_option(
         "--memory-bytes", options->memory_bytes,
         "host memory that jobs may have; a job that needs more waits. 0: nine tenths of the "
         "node's, or of its control group's")
      ->capture_default_str()
      ->check(WholeNumber(0, int64_t{1} << 60));
}

void AddFlags(CLI::App* app, Flags* flags) {
  AddCoordinatorFlags(app, &flags->server);
  AddServerFlags(app, &flags->server);
  app->add_option(
         "--gpu", flags->gpu,
         "the GPU with the ranks' parameters, gradients and shards: its number in CUDA, or its "
         "UUID, as shown by nvidia-smi -L; without it they are in host memory. Run one worker "
         "per GPU")
      ->check(IsGpu);
  app->add_option(
         "--direct-write-bytes", flags->direct_write_bytes,
         "size from which a write to a checkpoint file bypasses the page cache; 0: no write "
         "does")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxDirectFromBytes));
  app->add_option("--keep-memory", flags->keep_memory_for,
                  "how long the jobs' memory is kept while no daemon of this worker runs; the next "
                  "one continues the jobs. 0: it ends with this one. A GPU's memory is not kept")
      ->capture_default_str();
  app->add_option("--log-level", flags->log_level, "debug, info, warning or error")
      ->default_val("info");
  app->add_option("--executor-fault-points", flags->executor_faults,
                  "for tests: armed in each executor");
  app->add_flag("--debuggable", flags->debuggable, kDebuggableHelp);
  app->add_option("--fault-points", flags->fault_points,
                  "for tests: armed in this process, and in the vault");
}

absl::StatusOr<std::unique_ptr<WorkerServer>> StartServer(Flags flags) {
  RETURN_IF_ERROR(SetLogLevel(flags.log_level));
  if (!flags.gpu.empty()) {
    ASSIGN_OR_RETURN(const DeviceName name, ParseDeviceName(flags.gpu));
    ASSIGN_OR_RETURN(flags.server.device_memory, MakeMachineDeviceMemory(name));
  }
  flags.server.executor_flags = {"--log-level=" + flags.log_level,
                                 absl::StrCat("--direct-write-bytes=", flags.direct_write_bytes)};
  if (flags.debuggable) flags.server.executor_flags.push_back("--debuggable");
  if (!flags.executor_faults.empty())
    flags.server.executor_flags.push_back("--fault-points=" + flags.executor_faults);
  TESSERA_LOG(INFO, "{}", Describe(QueryCudaVersions()));
  return WorkerServer::Start(flags.server);
}

// Before this process has threads. Null: there is to be none.
absl::StatusOr<std::unique_ptr<VaultClient>> OpenVault(const Flags& flags,
                                                       absl::Duration keep_memory) {
  const std::string& folder = flags.server.socket_dir;
  // Taken and given back: that another worker is there is the first thing to say.
  RETURN_IF_ERROR(SocketFolder::Open(folder).status());
  if (keep_memory > absl::ZeroDuration() && flags.gpu.empty())
    return ConnectOrStartVault(folder, keep_memory);
  RETURN_IF_ERROR(EndVault(folder, flags.server.worker_id));
  return nullptr;
}

absl::Status Run(Flags flags, absl::Duration keep_memory) {
  ASSIGN_OR_RETURN(const auto manager, ServiceManager::FromEnvironment());
  // Before the vault is forked, which has them too.
  RETURN_IF_ERROR(ArmFaultPointsFromFlag(flags.fault_points));
  // Before the server's threads: a fork copies only the thread that calls it.
  ASSIGN_OR_RETURN(flags.server.vault, OpenVault(flags, keep_memory));
  if (!flags.debuggable) CloseProcess();
  // Before the first thread, which inherits the mask: only the wait below takes these signals.
  BlockStopSignals();
  SetLogContext("worker " + flags.server.worker_id);
  ASSIGN_OR_RETURN(const auto server, StartServer(flags));
  TESSERA_LOG(INFO, "serving {} devices on {}", flags.server.num_devices, server->address());
  // Once the sockets are there: what systemd starts after this may connect.
  manager->Ready();
  RETURN_IF_ERROR(manager->Watch([&server] { return server->MakesProgress(); }));
  const int signal = WaitForStopSignal();
  TESSERA_LOG(INFO, "signal {}: stopping", signal);
  manager->Stopping();
  if (flags.server.vault != nullptr) {
    server->Leave();
    fflush(nullptr);
    // Destructors would end executors and wait for them, while the next daemon waits for the
    // folder.
    _exit(kExitOk);
  }
  server->Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Flags flags;
  CLI::App app("The daemon of a node: owns the memory of its ranks and supervises their executors.",
               "tessera-worker");
  tessera::AddFlags(&app, &flags);
  app.set_version_flag("--version", [] {
    return absl::StrCat("tessera-worker ", tessera::kVersion, ", ",
                        Describe(tessera::QueryCudaVersions()));
  });
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  absl::Duration keep_memory;
  if (!absl::ParseDuration(flags.keep_memory_for, &keep_memory) ||
      keep_memory < absl::ZeroDuration()) {
    fprintf(stderr, "tessera-worker: --keep-memory %s: not a duration, as 10m or 0 (see --help)\n",
            flags.keep_memory_for.c_str());
    return tessera::kExitUsage;
  }
  const absl::Status status = tessera::Run(std::move(flags), keep_memory);
  if (status.ok()) return 0;
  fprintf(stderr, "tessera-worker: %s\n", status.ToString().c_str());
  return 1;
}
