#include "worker/service/worker_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"
#include "base/utf8.h"
#include "base/version.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "job/field_limits.h"
#include "net/accept_loop.h"
#include "net/credentials.h"
#include "net/http_listener.h"
#include "net/server_connections.h"
#include "proto/vault.pb.h"
#include "shm/local_messages.h"
#include "worker/agent/coordinator_agent.h"
#include "worker/agent/live_sources.h"
#include "worker/agent/put_relay.h"
#include "worker/agent/state_relay.h"
#include "worker/comm/tcp/peer_mesh.h"
#include "worker/keeper/descriptor_server.h"
#include "worker/keeper/direct_maps.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/job_vault.h"
#include "worker/keeper/keeper.h"
#include "worker/keeper/memory_budget.h"
#include "worker/keeper/state_map.h"
#include "worker/service/live_fetch_service.h"
#include "worker/service/socket_folder.h"
#include "worker/service/state_listener.h"
#include "worker/service/worker_metrics.h"
#include "worker/service/worker_service.h"

namespace tessera {
namespace {

constexpr absl::Duration kShutdownGrace = absl::Seconds(1);
// For a round of the agent's loop. A coordinator that does not answer makes it long.
constexpr absl::Duration kLongestRound = absl::Minutes(1);

DialOptions CoordinatorOf(const WorkerServer::Options& options) {
  return {options.coordinator_address, options.tls, options.insecure_connect};
}

absl::Status Validate(const WorkerServer::Options& options) {
  RETURN_IF_ERROR(CheckWorkerId("--worker-id", options.worker_id));
  RETURN_IF_ERROR(CheckRange("--devices", options.num_devices, 1, kMaxDevices));
  if (options.coordinator_address.empty())
    return absl::InvalidArgumentError("--coordinator is empty");
  if (!options.executor_binary.empty() && access(options.executor_binary.c_str(), X_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("executor binary ", options.executor_binary));
  }
  if (!options.data_host.empty()) {
    // A port is only there to make it an address. Ranks choose theirs.
    const bool v6 = absl::StrContains(options.data_host, ':');
    const std::string address =
        v6 ? absl::StrCat("[", options.data_host, "]:1") : absl::StrCat(options.data_host, ":1");
    const auto plain = ChooseProtection(Side::kListen, address, {}, options.insecure_data);
    if (absl::IsFailedPrecondition(plain.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--data-host ", options.data_host,
          ": what ranks of several workers send each other is not encrypted: permit it with "
          "--insecure-data where the network between them is trusted"));
    }
    if (!plain.ok()) return Annotate(plain.status(), "--data-host");
    // Listens once, so that a mistake is an error at the start and not of the first job.
    PeerMesh::Options probe;
    probe.listen_host = options.data_host;
    RETURN_IF_ERROR(Annotate(PeerMesh::Listen(std::move(probe)).status(), "--data-host"));
  }
  return CheckDialOptions(CoordinatorOf(options));
}

// For display.
std::string DescribeDevice(const DeviceMemory* memory) {
  if (memory == nullptr) return "";
  const DeviceName name = memory->device();
  const std::string gpu = name.has_uuid() ? UuidText(name.uuid) : absl::StrCat("GPU ", name.number);
  const std::string why(Utf8Prefix(memory->why_not_shared(), kMaxNameBytes / 2));
  return why.empty() ? gpu : absl::StrCat(gpu, ", in its trainers' processes: ", why);
}

class WorkerServerImpl : public WorkerServer {
 public:
  ~WorkerServerImpl() override { Stop(); }

  absl::Status Open(const Options& options) {
    // First: everything below is for the one worker that has the folder's lock.
    ASSIGN_OR_RETURN(folder_, SocketFolder::Open(options.socket_dir));
    socket_path_ = options.socket_dir + "/worker.sock";
    launcher_ = options.executor_binary.empty()
                    ? NewThreadLauncher(options.machine)
                    : NewProcessLauncher(options.executor_binary, options.executor_flags);
    device_memory_ = options.device_memory;
    // A tenth stays for what is not a job's.
    budget_.emplace(options.memory_bytes > 0 ? options.memory_bytes
                                             : MachineMemoryBytes() / 10 * 9);
    TESSERA_LOG(INFO, "jobs get up to {} of this node's memory", BytesText(budget_->all_bytes()));
    JobVault::Held held;
    if (options.vault != nullptr) {
      vault_.emplace(options.vault);
      // Before anything is created: executors of the last daemon must have ended.
      ASSIGN_OR_RETURN(held, vault_->TakeOver(options.worker_id, options.num_devices));
    }
    keeper_ = std::make_unique<Keeper>(
        options.worker_id, options.data_host, launcher_.get(),
        // The agent is made below, before there is a job that could emit.
        [this](const v1::WorkerEvent& event) { agent_->Send(event); }, device_memory_.get(),
        &*budget_, vault_.has_value() ? &*vault_ : nullptr);
    v1::VaultedWorker self;
    self.set_protocol(kProtocol);
    self.set_version(kVersion);
    self.set_worker_id(options.worker_id);
    self.set_num_devices(options.num_devices);
    // It begins a new life, unless it has the memory of the one before.
    if (held.jobs.empty()) {
      self.set_key(RandomBytes(32));
    } else {
      self.set_key(held.worker->key());
      self.set_incarnation(held.worker->incarnation());
      self.set_cluster_id(held.worker->cluster_id());
      self.set_heard_start(held.worker->heard_start());
      self.set_heard_changes(held.worker->heard_changes());
    }
    CoordinatorAgent::Options agent;
    agent.coordinator = CoordinatorOf(options);
    agent.worker_id = options.worker_id;
    agent.key = self.key();
    agent.incarnation = self.incarnation();
    agent.num_devices = options.num_devices;
    agent.worker_address = address();
    agent.data_host = options.data_host;
    agent.memory_bytes = budget_->all_bytes();
    agent.device = DescribeDevice(device_memory_.get());
    agent.max_ranks_of_job = options.max_ranks_of_job;
    // Ranks of a job share its parameters, and trainers that have them share nothing.
    if (device_memory_ != nullptr && !device_memory_->why_not_shared().empty())
      agent.max_ranks_of_job = 1;
    agent.on_command = [this](const v1::CoordinatorCommand& command) {
      if (command.has_serve_state()) return relay_->Serve(command.serve_state());
      if (command.has_stage_put()) return puts_->Serve(command.stage_put());
      keeper_->HandleCommand(command);
    };
    agent.on_connected = [this] { return keeper_->OnConnected(); };
    agent.heartbeat = [this] { return keeper_->Progress(); };
    agent.holds_jobs = [this] { return keeper_->holds_jobs(); };
    agent.cluster = self.cluster_id();
    agent.heard = {self.heard_start(), self.heard_changes()};
    if (vault_.has_value()) {
      // Before the first job: memory without a worker's name is taken over by nobody.
      vault_->PutWorker(self);
      agent.on_registered = [this, self](const std::string& cluster, int64_t incarnation,
                                         const HeardJournal& heard) {
        v1::VaultedWorker known = self;
        known.set_heard_start(heard.start);
        known.set_heard_changes(heard.changes);
        known.set_cluster_id(cluster);
        known.set_incarnation(incarnation);
        vault_->PutWorker(known);
      };
    }
    agent_ = std::make_unique<CoordinatorAgent>(std::move(agent));
    if (!options.state_listen_address.empty()) {
      auto listener = StateListener::Start(options.state_listen_address, options.tls,
                                           options.insecure_state_listen, &sources_);
      RETURN_IF_ERROR(Annotate(listener.status(), "--state-listen"));
      listener_ = *std::move(listener);
      TESSERA_LOG(INFO, "jobs' states are fetched at {}", listener_->address());
    }
    relay_ = std::make_unique<StateRelay>(RelayOptions(options));
    puts_ = std::make_unique<PutRelay>(PutOptions(options));
    DescriptorServer::Options descriptors;
    descriptors.direct_maps = &direct_maps_;
    ASSIGN_OR_RETURN(const std::string descriptor_socket, DescriptorSocketOf(address()));
    ASSIGN_OR_RETURN(descriptors_,
                     DescriptorServer::Start(descriptor_socket, keeper_.get(), descriptors));
    WorkerService::Options service;
    service.worker_id = options.worker_id;
    service.incarnation = [this] { return agent_->incarnation(); };
    service.num_devices = options.num_devices;
    service.device = DescribeDevice(device_memory_.get());
    service.coordinator_connected = [this] { return agent_->connected(); };
    service.cluster = [this] { return agent_->cluster(); };
    service_ = std::make_unique<WorkerService>(std::move(service), keeper_.get());
    // For this user and root alone.
    ASSIGN_OR_RETURN(UniqueFd socket,
                     ListenUnixSocket(socket_path_, SOCK_STREAM | SOCK_NONBLOCK, 0600));
    accepts_.emplace(absl::StrCat("socket '", socket_path_, "'"), std::move(socket));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    builder.RegisterService(&fetches_);
    PermitPings(&builder);
    ServerConnections::Limit(&builder, ServerConnections::Requests::kSmall);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      return absl::InternalError("gRPC could not start its server, and does not say why");
    RETURN_IF_ERROR(accepts_->Start([this](UniqueFd connection) {
      grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
      return absl::OkStatus();
    }));
    // After the servers, and before the agent: the coordinator hears of these jobs in the first
    // report.
    for (JobVault::HeldJob& job : held.jobs) keeper_->TakeOver(std::move(job));
    // Commands come from here on.
    RETURN_IF_ERROR(agent_->Start());
    return Annotate(ListenOverHttp(options), "--http-listen");
  }

  absl::Status ListenOverHttp(const Options& options) {
    if (options.http_listen_address.empty()) return absl::OkStatus();
    WorkerHealth health;
    health.makes_progress = [this] { return MakesProgress(); };
    health.coordinator_connected = [this] { return agent_->connected(); };
    ASSIGN_OR_RETURN(http_, HttpListener::Start({options.http_listen_address, options.tls,
                                                 options.insecure_http_listen},
                                                WorkerPages(keeper_.get(), std::move(health))));
    TESSERA_LOG(INFO, "metrics and health over HTTP at port {}", http_->port());
    return absl::OkStatus();
  }

  void EndCalls() {
    if (accepts_.has_value()) accepts_->Stop();
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(SteadyNow() + kShutdownGrace));
  }

  void Stop() override {
    http_.reset();
    // Calls first, then what they use.
    EndCalls();
    // No command comes any more, so no job or session begins.
    if (agent_ != nullptr) agent_->Stop();
    if (relay_ != nullptr) relay_->Stop();
    if (puts_ != nullptr) puts_->Stop();
    listener_.reset();
    if (folder_.has_value()) unlink(socket_path_.c_str());  // Else it may be another worker's.
    descriptors_.reset();
    // After all that attaches to jobs. It waits for executors.
    if (keeper_ != nullptr) keeper_->Shutdown();
    server_.reset();
    folder_.reset();
  }

  // Nothing of the jobs is destroyed: the process exits right after this, and the vault has their
  // memory (docs/adr/0064).
  void Leave() override {
    http_.reset();
    EndCalls();
    agent_->Stop();
    unlink(socket_path_.c_str());
  }

  bool MakesProgress() const override {
    // Takes the locks on its way: if one of them is never released, this does not return either.
    (void)keeper_->Progress();
    return SteadyNow() - agent_->last_round() < kLongestRound;
  }
  std::string address() const override { return absl::StrCat("unix:", socket_path_); }
  bool connected() const override { return agent_->connected(); }
  int http_port() const override { return http_ == nullptr ? 0 : http_->port(); }
  void KillExecutorForTest(const std::string& job_id, int rank) override {
    const auto job = keeper_->Find(job_id);
    if (job != nullptr) job->KillExecutor(Rank(rank));
  }

 private:
  StateRelay::Options RelayOptions(const Options& options) {
    StateRelay::Options relay;
    relay.coordinator = CoordinatorOf(options);
    relay.worker_id = options.worker_id;
    relay.spool_folder = options.spool_folder;
    relay.sources = &sources_;
    relay.fetch_addresses = [this] {
      std::vector<std::string> addresses = {address()};
      if (listener_ != nullptr) addresses.push_back(listener_->address());
      return addresses;
    };
    relay.open = [this](const std::string& job_id, int64_t generation,
                        const StateSnapshot::Request& request) {
      return keeper_->SnapshotState(job_id, generation, request);
    };
    relay.open_frozen = [this](const std::string& job_id, int64_t generation, int64_t step) {
      return keeper_->FrozenStateOf(job_id, generation, step);
    };
    return relay;
  }

  PutRelay::Options PutOptions(const Options& options) {
    PutRelay::Options puts;
    puts.coordinator = CoordinatorOf(options);
    puts.worker_id = options.worker_id;
    puts.spool_folder = options.spool_folder;
    puts.find = [this](const std::string& job_id, int64_t generation) {
      return keeper_->FindForPut(job_id, generation);
    };
    return puts;
  }

  std::optional<SocketFolder> folder_;  // Until all sockets are gone.
  std::string socket_path_;
  std::unique_ptr<ExecutorLauncher> launcher_;
  std::shared_ptr<DeviceMemory> device_memory_;
  std::unique_ptr<CoordinatorAgent> agent_;
  std::optional<MemoryBudget> budget_;
  std::optional<JobVault> vault_;
  std::unique_ptr<Keeper> keeper_;
  LiveSources sources_;
  LiveFetchService fetches_{&sources_};
  std::unique_ptr<StateListener> listener_;
  std::unique_ptr<StateRelay> relay_;
  std::unique_ptr<PutRelay> puts_;
  DirectMaps direct_maps_{[this](const std::string& job_id) { return keeper_->Find(job_id); }};
  std::unique_ptr<DescriptorServer> descriptors_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<AcceptLoop> accepts_;  // From socket_path_, for server_.
  std::unique_ptr<HttpListener> http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const Options& options) {
  RETURN_IF_ERROR(Validate(options));
  auto server = std::make_unique<WorkerServerImpl>();
  RETURN_IF_ERROR(server->Open(options));
  return server;
}

}  // namespace tessera
