#include "worker/agent/coordinator_agent.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/retry.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"

namespace tessera {
namespace {

// A coordinator that accepts connections and does not answer costs one round only so long.
constexpr absl::Duration kRegisterDeadline = absl::Seconds(5);
// From so many on nobody takes them: of the step reports of a rank the newest is kept then.
constexpr size_t kMaxWaitingEvents = 1024;
// Between two rounds of a loop in which nothing happens.
constexpr absl::Duration kLongestRound = absl::Seconds(10);

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(
    const CoordinatorAgent::Options& options) {
  grpc::ChannelArguments args;
  // A peer that is frozen or whose machine is gone closes no connection. Pings go only while a call
  // is open, which the stream always is: without one the coordinator permits next to none.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, absl::ToInt64Milliseconds(options.keepalive_interval));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, absl::ToInt64Milliseconds(options.keepalive_timeout));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // No bound: nothing but pings may flow.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A command to prepare has the whole description of its job.
  args.SetMaxReceiveMessageSize(64 << 20);
  // A fresh connection each time, so that an old one's backoff does not delay the next try.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return OpenChannel(options.coordinator, std::move(args));
}

// Whether `newer` says all that `older` says.
// A step report says how far a rank is, so the newest one is enough.
bool Covers(const v1::WorkerEvent& newer, const v1::WorkerEvent& older) {
  return newer.has_step() && older.has_step() && newer.step().job_id() == older.step().job_id() &&
         newer.step().rank() == older.step().rank() && newer.step().epoch() == older.step().epoch();
}

}  // namespace

class CoordinatorAgent::Connection {
 public:
  explicit Connection(std::shared_ptr<grpc::Channel> channel)
      : stub(v1::Membership::NewStub(std::move(channel))) {}
  const std::unique_ptr<v1::Membership::Stub> stub;
  grpc::ClientContext register_context;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerEvent, v1::CoordinatorCommand>> stream;
};

CoordinatorAgent::CoordinatorAgent(Options options)
    : options_(std::move(options)),
      cluster_(options_.cluster),
      incarnation_(options_.incarnation),
      heard_(options_.heard) {}

CoordinatorAgent::~CoordinatorAgent() { Stop(); }

absl::Status CoordinatorAgent::Start() {
  ASSIGN_OR_RETURN(thread_, StartThread("the coordinator agent", [this] { Run(); }));
  return absl::OkStatus();
}

void CoordinatorAgent::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    // A call that is under way ends at once. The thread is joined below.
    if (connection_ != nullptr) {
      connection_->register_context.TryCancel();
      connection_->context.TryCancel();
    }
  }
  if (thread_.joinable()) thread_.join();
}

bool CoordinatorAgent::connected() const {
  absl::MutexLock lock(&mu_);
  return connected_;
}

absl::Time CoordinatorAgent::last_round() const {
  absl::MutexLock lock(&mu_);
  return last_round_;
}

void CoordinatorAgent::Send(const v1::WorkerEvent& event) {
  absl::MutexLock lock(&mu_);
  // Nothing is kept for later: on_connected tells what still counts once there is a connection.
  if (!connected_) return;
  outbox_.push_back(event);
  if (outbox_.size() < kMaxWaitingEvents || !event.has_step()) return;
  const auto covered = [&](const v1::WorkerEvent& older) { return Covers(event, older); };
  // All but the last, which is the new one.
  outbox_.erase(std::remove_if(outbox_.begin(), outbox_.end() - 1, covered), outbox_.end() - 1);
}

void CoordinatorAgent::Run() {
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<double> uniform(0, 1);
  absl::Status last;
  for (int attempt = 0;; ++attempt) {
    const absl::Time began = SteadyNow();
    const absl::Status status = RunOnce();
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    // Only what is new: a coordinator may be away for hours.
    if (status != last)
      TESSERA_LOG(WARNING, "coordinator {}: {}", options_.coordinator.address, status.ToString());
    last = status;
    // A connection that lasted is no failure: the next try comes soon again.
    if (SteadyNow() - began > absl::Seconds(5)) attempt = 0;
    // With jitter: all workers of a cluster lose their coordinator at the same time.
    AwaitWithTimeout(&mu_, absl::Condition(&stopping_),
                     RetryDelay(RetryOptions(), attempt, uniform(random)));
    if (stopping_) return;
  }
}

absl::Status CoordinatorAgent::RunOnce() {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options_));
  Connection connection(std::move(channel));
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    last_round_ = SteadyNow();
    // On this frame: it is taken back before the frame ends.
    connection_ = &connection;  // From here on Stop() ends its calls.
  }
  const absl::StatusOr<absl::Duration> heartbeat_interval = Register(&connection);
  absl::Status status = heartbeat_interval.status();
  if (status.ok()) status = Stream(&connection, *heartbeat_interval);
  // Stop holds the lock while it uses the connection, so it never sees one that is gone.
  absl::MutexLock lock(&mu_);
  connection_ = nullptr;
  return status.ok() ? absl::UnavailableError("the stream ended") : status;
}

absl::StatusOr<absl::Duration> CoordinatorAgent::Register(Connection* connection) {
  v1::RegisterWorkerRequest request;
  request.set_request_id(absl::StrCat(options_.worker_id, "/", incarnation(), "/register"));
  request.set_worker_id(options_.worker_id);
  // Also without memory: once another process has its name, it is not to take that back.
  request.set_incarnation(incarnation());
  request.set_key(options_.key);
  request.set_num_devices(options_.num_devices);
  request.set_address(options_.worker_address);
  request.set_data_host(options_.data_host);
  request.set_max_ranks_of_job(options_.max_ranks_of_job);
  request.set_memory_bytes(options_.memory_bytes);
  request.set_device(options_.device);
  // Without jobs the worker may join any cluster, so it names none.
  if (options_.holds_jobs()) {
    request.set_cluster_id(cluster_.name());
    request.set_heard_start(heard_.start);
    request.set_heard_changes(heard_.changes);
  }
  v1::RegisterWorkerResponse response;
  grpc::ClientContext& context = connection->register_context;
  context.set_deadline(GrpcDeadline(SteadyNow() + kRegisterDeadline));
  RETURN_IF_ERROR(FromGrpcStatus(connection->stub->RegisterWorker(&context, request, &response)));
  const std::string before = cluster_.name();
  // Before anything of the response is kept: another cluster's numbers mean nothing here.
  RETURN_IF_ERROR(cluster_.Join(response.cluster_id(), options_.holds_jobs()));
  const bool is_new = incarnation_.exchange(response.incarnation()) != response.incarnation();
  const bool is_restarted = response.start() != 0 && heard_.start != response.start();
  // 0: the coordinator could not note its start in its journal, so its position means nothing.
  if (response.start() != 0) heard_ = {response.start(), response.changes()};
  // The vault learns of each change, so that the next daemon goes on with the same identity.
  if (options_.on_registered != nullptr && (is_new || is_restarted || cluster_.name() != before))
    options_.on_registered(cluster_.name(), incarnation(), heard_);
  // At least 10 ms, whatever the coordinator says.
  return absl::Milliseconds(std::max<int64_t>(10, response.heartbeat_interval_ms()));
}

absl::Status CoordinatorAgent::Stream(Connection* connection, absl::Duration heartbeat_interval) {
  connection->stream = connection->stub->Connect(&connection->context);
  {
    absl::MutexLock lock(&mu_);
    // Before on_connected is asked: an event in between is sent twice, never lost.
    connected_ = true;
    reading_ended_ = false;
    // What waited for the connection before: on_connected tells what of it still counts.
    outbox_.clear();
  }
  TESSERA_LOG(INFO, "connected to coordinator {}", options_.coordinator.address);
  auto writer = StartThread("the coordinator agent's writer",
                            [=] { WriteLoop(connection, heartbeat_interval); });
  if (!writer.ok()) connection->context.TryCancel();
  v1::CoordinatorCommand command;
  absl::Status foreign;
  while (foreign.ok() && connection->stream->Read(&command)) {
    // Each command is checked, since a coordinator may be replaced behind its address.
    foreign = CheckSender(command);
    if (!foreign.ok()) continue;
    // The position in the journal, as the next registration tells it (docs/adr/0069).
    heard_.changes = std::max(heard_.changes, command.changes());
    options_.on_command(command);
  }
  {
    absl::MutexLock lock(&mu_);
    // An event from now on is dropped: on_connected of the next stream tells what still counts.
    connected_ = false;
    // Wakes the writer, which waits for events.
    reading_ended_ = true;
  }
  // A write that waits for a frozen coordinator ends too.
  connection->context.TryCancel();
  // Before Finish, which no other call of the stream may meet.
  if (writer.ok()) writer->join();
  const absl::Status status = FromGrpcStatus(connection->stream->Finish());
  RETURN_IF_ERROR(foreign);
  return writer.ok() ? status : writer.status();
}

absl::Status CoordinatorAgent::CheckSender(const v1::CoordinatorCommand& command) const {
  if (command.cluster_id() == cluster_.name()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it sent a command of cluster '", command.cluster_id(),
                   "', and this worker belongs to cluster ", cluster_.name(), ": ignored"));
}

void CoordinatorAgent::WriteLoop(Connection* connection, absl::Duration heartbeat_interval) {
  bool is_first = true;
  const auto write = [&](v1::WorkerEvent event) {
    event.set_worker_id(options_.worker_id);
    event.set_incarnation(incarnation());
    event.set_cluster_id(cluster_.name());
    // The key proves the worker's name. It goes once for each stream.
    if (std::exchange(is_first, false)) event.set_key(options_.key);
    return connection->stream->Write(event);
  };
  // All that was not acknowledged, before anything new.
  for (const v1::WorkerEvent& event : options_.on_connected()) {
    if (!write(event)) return;
  }
  absl::Time next_heartbeat = SteadyNow() + heartbeat_interval;
  while (true) {
    std::deque<v1::WorkerEvent> events;
    {
      absl::MutexLock lock(&mu_);
      const auto something = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return reading_ended_ || !outbox_.empty();
      };
      AwaitWithDeadline(&mu_, absl::Condition(&something),
                        std::min(next_heartbeat, SteadyNow() + kLongestRound));
      last_round_ = SteadyNow();
      if (reading_ended_) return;
      // Written without the lock: a slow coordinator must not hold up those who send.
      events.swap(outbox_);
    }
    for (v1::WorkerEvent& event : events) {
      if (!write(std::move(event))) return;
    }
    if (SteadyNow() < next_heartbeat) continue;
    next_heartbeat = SteadyNow() + heartbeat_interval;
    v1::WorkerEvent event;
    // Without the lock: it takes the keeper's, and each job's.
    *event.mutable_heartbeat() = options_.heartbeat();
    if (!write(std::move(event))) return;
  }
}

}  // namespace tessera
