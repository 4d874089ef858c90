// tessera-worker: the daemon of a node.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/closed_process.h"
#include "base/command_line.h"
#include "base/log.h"
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

namespace {

absl::StatusOr<std::unique_ptr<tessera::WorkerServer>> StartServer(
    tessera::WorkerServer::Options options, const std::string& gpu) {
  if (!gpu.empty()) {
    ASSIGN_OR_RETURN(const tessera::DeviceName name, tessera::ParseDeviceName(gpu));
    ASSIGN_OR_RETURN(options.device_memory, tessera::MakeMachineDeviceMemory(name));
  }
  return tessera::WorkerServer::Start(options);
}

// As a CLI::Validator: empty where it is one.
std::string IsGpu(const std::string& text) {
  const absl::StatusOr<tessera::DeviceName> name = tessera::ParseDeviceName(text);
  if (!name.ok()) return std::string(name.status().message());
  return name->is_host() ? "-1 is no GPU" : "";
}

}  // namespace

int main(int argc, char** argv) {
  tessera::WorkerServer::Options options;
  std::string log_level = "info";
  std::string executor_faults;
  std::string keep_memory_for = "10m";
  int64_t direct_write_bytes = tessera::kDirectFromBytes;
  CLI::App app("The daemon of a node: owns the memory of its ranks and supervises their executors.",
               "tessera-worker");
  app.add_option("--coordinator", options.coordinator_address, "host:port of the coordinator")
      ->required();
  app.add_option("--tls-cert", options.tls.certificate_path, "PEM file of this worker");
  app.add_option("--tls-key", options.tls.key_path, "PEM file of this worker");
  app.add_option("--tls-ca", options.tls.ca_path, "PEM file that signed the coordinator's");
  app.add_flag("--insecure-connect", options.insecure_connect,
               "permit a coordinator of another machine, without TLS");
  app.add_option("--worker-id", options.worker_id, "name of this worker, unique in the cluster")
      ->required();
  app.add_option("--devices", options.num_devices, "ranks that this node can hold")
      ->default_val(1)
      ->check(tessera::WholeNumber(1, tessera::kMaxDevices));
  std::string gpu;
  app.add_option("--gpu", gpu,
                 "the GPU that has the ranks' parameters, gradients and shards: as CUDA numbers "
                 "them, or by its UUID, as nvidia-smi -L shows it; without it the processor's "
                 "memory has them. A worker for each GPU")
      ->check(IsGpu);
  app.add_option("--data-host", options.data_host,
                 "IP address by which ranks of other workers reach this one's; without it no job "
                 "that needs several workers comes here");
  app.add_flag("--insecure-data", options.insecure_data,
               "permit a --data-host that other machines reach: ranks' data is not encrypted");
  app.add_option("--socket-dir", options.socket_dir, "folder of the sockets for trainers")
      ->required();
  app.add_option("--spool-folder", options.spool_folder,
                 "folder on a disk, for what clients read of jobs' states, or set")
      ->capture_default_str();
  app.add_option(
      "--state-listen", options.state_listen_address,
      "host:port where clients of other machines fetch jobs' states; without it they get "
      "them through the coordinator");
  app.add_flag("--insecure-state-listen", options.insecure_state_listen,
               "permit a --state-listen that other machines reach, without TLS");
  app.add_option("--executor-binary", options.executor_binary, "path of tessera-executor")
      ->required();
  app.add_option("--direct-write-bytes", direct_write_bytes,
                 "what files of checkpoints are given at once, to go past the page cache; 0: "
                 "nothing does")
      ->capture_default_str()
      ->check(tessera::WholeNumber(0, tessera::kMaxDirectFromBytes));
  app.add_option(
         "--memory-bytes", options.memory_bytes,
         "of the processor's memory that jobs may have; a job that needs more waits. 0: nine "
         "tenths of the machine's, or of its control group's")
      ->capture_default_str()
      ->check(tessera::WholeNumber(0, int64_t{1} << 60));
  app.add_option("--keep-memory", keep_memory_for,
                 "how long the jobs' memory is kept while no daemon of this worker runs; the next "
                 "one goes on with the jobs. 0: it ends with this one. Of a GPU none is kept")
      ->capture_default_str();
  app.add_option("--log-level", log_level, "debug, info, warning or error")->default_val("info");
  app.add_option("--executor-fault-points", executor_faults, "for tests: armed in each executor");
  bool debuggable = false;
  app.add_flag("--debuggable", debuggable, tessera::kDebuggableHelp);
  app.set_version_flag("--version", [] {
    return absl::StrCat("tessera-worker ", tessera::kVersion, ", ",
                        Describe(tessera::QueryCudaVersions()));
  });
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  absl::Duration keep_memory;
  if (!absl::ParseDuration(keep_memory_for, &keep_memory) || keep_memory < absl::ZeroDuration()) {
    fprintf(stderr, "tessera-worker: --keep-memory %s: not a duration, as 10m or 0 (see --help)\n",
            keep_memory_for.c_str());
    return tessera::kExitUsage;
  }
  absl::Status status;
  {
    // Taken and given back: that another worker is there is the first thing to say.
    const auto folder = tessera::SocketFolder::Open(options.socket_dir);
    status = folder.status();
  }
  if (status.ok() && keep_memory > absl::ZeroDuration() && gpu.empty()) {
    // A process of its own, made before this one has threads.
    auto vault = tessera::ConnectOrStartVault(options.socket_dir, keep_memory);
    status = vault.status();
    if (vault.ok()) options.vault = *std::move(vault);
  } else if (status.ok()) {
    status = tessera::EndVault(options.socket_dir, options.worker_id);
  }
  if (debuggable) {
    options.executor_flags.push_back("--debuggable");
  } else {
    tessera::CloseProcess();
  }
  tessera::BlockStopSignals();
  tessera::SetLogContext("worker " + options.worker_id);
  options.executor_flags.push_back("--log-level=" + log_level);
  options.executor_flags.push_back(absl::StrCat("--direct-write-bytes=", direct_write_bytes));
  if (!executor_faults.empty())
    options.executor_flags.push_back("--fault-points=" + executor_faults);
  status.Update(tessera::SetLogLevel(log_level));
  if (status.ok()) {
    TESSERA_LOG(INFO, "{}", Describe(tessera::QueryCudaVersions()));
    auto server = StartServer(options, gpu);
    status = server.status();
    if (status.ok()) {
      TESSERA_LOG(INFO, "serving {} devices on {}", options.num_devices, (*server)->address());
      const int signal = tessera::WaitForStopSignal();
      TESSERA_LOG(INFO, "signal {}: stopping", signal);
      if (options.vault != nullptr) {
        (*server)->Leave();
        fflush(nullptr);
        _exit(tessera::kExitOk);
      }
      (*server)->Stop();
      return 0;
    }
  }
  fprintf(stderr, "tessera-worker: %s\n", status.ToString().c_str());
  return 1;
}
