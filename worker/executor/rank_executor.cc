#include "worker/executor/rank_executor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "proto/executor.pb.h"
#include "worker/device/host/host_stream.h"
#include "worker/engine/buffer_slots.h"
#include "worker/engine/rank_engine.h"
#include "worker/executor/epoch_communicators.h"
#include "worker/executor/executor_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/executor_puts.h"
#include "worker/executor/keeper_link.h"
#include "worker/executor/replica_exchange.h"

namespace tessera {
namespace {

class RankExecutor {
 public:
  RankExecutor(int socket, ExecutorMemory memory, const ExecutorMachine& machine)
      : socket_(socket),
        memory_(std::move(memory)),
        link_({socket, memory_.job_id, memory_.rank, memory_.config.collective_timeout,
               &memory_.layout}),
        files_(
            &memory_, machine.direct_write_bytes,
            [this](const std::string& path) { link_.ReportSaving(path); },
            [this](const absl::Status& status) { SendFailure(status); },
            [this](const v1::SaveReport& report) { SendSaveReport(report); }),
        puts_(memory_.plan.num_parameters(), &memory_.layout.buffers,
              [this](uint64_t put, const std::string& failure) { SendPutGone(put, failure); }),
        recorder_(memory_.flight_ring()),
        communicators_(&memory_, machine.make_direct) {}
  ~RankExecutor() {
    // The engine's thread uses everything below, so it is joined before anything is destroyed.
    Quiesce(absl::AbortedError("the executor ends"));
    // It reads the state's address, which goes with memory_.
    if (pinning_.joinable()) pinning_.join();
  }

  absl::Status Open();
  // `fds`: that came with it. False: stop.
  bool Handle(const v1::ExecutorCommand& command, std::vector<UniqueFd> fds);
  // The socket has ended. Where nothing is under way here, the other ranks do not notice, and the
  // worker is told so: a trainer that has this executor in its process, and detaches, disturbs
  // nobody.
  void Leave();
  // Not OK once the device has failed, for good.
  absl::Status device_status() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return device_status_;
  }
  // Ends what runs. Not OK: something is stuck, and only the end of the process ends that.
  absl::Status Close();

 private:
  absl::Status CreateKernels();
  // Once in the memory's life, before the first epoch in it.
  absl::Status ClearDeviceMemory();
  absl::Status StartEpoch(const v1::ExecutorStart& start);
  RankEngine::Options EngineOptions(Epoch epoch);
  // Where ranks are rebuilt: gets this rank's values from another, or gives them to others.
  absl::Status Rebuild(const v1::ExecutorStart& start);
  // Has the engine begin; true: there is something to run.
  absl::StatusOr<bool> BeginEngine(const v1::ExecutorStart& start);
  // The whole of an epoch in which ranks are rebuilt, on the engine's thread: a wait for another
  // rank ends with the epoch, of which the thread that reads commands hears.
  void RebuildAndRun(const v1::ExecutorStart& start);
  void RunEngine(Epoch epoch);
  void EndRun(Epoch epoch, const absl::Status& status);
  // Whether the device works, and what moves bytes from one to the other. Reports it where it does
  // not, and has this executor end: the thread that waits for commands reads the end of them. While
  // no engine runs.
  bool CheckDevice(Epoch epoch) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsWell(Epoch epoch, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void Quiesce(const absl::Status& reason);
  // Says that the rank is quiet; where it is to prepare an epoch across workers, it listens first.
  // False: stop.
  bool Answer(const v1::ExecutorAbort& abort);
  void ReportFailure(Epoch epoch, const absl::Status& status);
  // Of the epoch that runs, told by a thread that is neither the engine's nor this one.
  void SendFailure(const absl::Status& status);
  void SendPutGone(uint64_t put, const std::string& failure);
  void SendSaveReport(v1::SaveReport report);

  const int socket_;
  mutable absl::Mutex mu_;
  absl::Status device_status_ ABSL_GUARDED_BY(mu_);
  ExecutorMemory memory_;
  KeeperLink link_;
  ExecutorFiles files_;
  ExecutorPuts puts_;
  std::atomic<uint64_t> running_epoch_{0};
  FlightRecorder recorder_;
  std::unique_ptr<Stream> post_backward_;
  std::unique_ptr<RankKernels> kernels_, stream_kernels_;  // The engine's thread's, the stream's.
  // Of an epoch; null: no device.
  std::unique_ptr<GradientEvents> gradient_events_, window_events_;
  std::unique_ptr<StateImages> images_;  // Null: the state is addressable.
  std::unique_ptr<BufferSlots> buffers_;
  EpochCommunicators communicators_;
  std::unique_ptr<RankEngine> engine_;
  std::thread engine_thread_, pinning_;
};

absl::Status RankExecutor::Open() {
  const int own = memory_.local_index();
  buffers_ = std::make_unique<BufferSlots>(
      &memory_.plan.buffers(),
      memory_.gradients[own].data() + memory_.plan.staged_buffers_offset_bytes(),
      memory_.group.data() + BufferSlotsOffsetBytes(memory_.plan, own));
  ASSIGN_OR_RETURN(post_backward_, HostStream::Create("post-backward"));
  RETURN_IF_ERROR(CreateKernels());
  if (memory_.device->is_separate()) RETURN_IF_ERROR(ClearDeviceMemory());
  // Before ready: loading kernels takes longer than ranks that have met would wait
  // (docs/adr/0076).
  RETURN_IF_ERROR(communicators_.Open());
  memory_.control_page()->executor_pid.store(getpid());
  v1::ExecutorEvent event;
  // Last: from here on the worker may start an epoch.
  event.mutable_ready();
  link_.Send(event);
  // After ready, since it is not needed for the first step. Without it sums go another way.
  absl::StatusOr<std::thread> pinning = StartThread("pinning", [this] { memory_.PinSums(); });
  if (pinning.ok()) pinning_ = *std::move(pinning);
  return absl::OkStatus();
}

absl::Status RankExecutor::CreateKernels() {
  RankDevice::KernelOptions options;
  options.state_on_host = memory_.state_is_addressable();
  options.max_count = memory_.LargestShard();
  ASSIGN_OR_RETURN(kernels_, memory_.device->CreateKernels(options));
  options.stream = "post-backward";
  ASSIGN_OR_RETURN(stream_kernels_, memory_.device->CreateKernels(options));
  if (memory_.state_is_addressable()) return absl::OkStatus();
  std::byte* state = memory_.state.data_as<std::byte>();
  const OptimizerKind optimizer = memory_.config.optimizer;
  images_.reset(new StateImages{StateImage(&memory_.plan, optimizer, state),
                                StateImage(&memory_.plan, optimizer, state)});
  return absl::OkStatus();
}

absl::Status RankExecutor::ClearDeviceMemory() {
  const int own = memory_.topology.LocalIndex(static_cast<int>(memory_.rank.value()));
  // Of the keeper's page, so that a successor does not clear what training has written since.
  std::atomic<uint32_t>& cleared = memory_.group_page()->ranks[own].device_cleared;
  // Memory of a trainer's process is new with each executor, whatever the page says.
  if (!memory_.in_process && cleared.load(std::memory_order_acquire) != 0) return absl::OkStatus();
  const Buffer& gradients = memory_.device_gradients[own];
  kernels_->Clear(gradients.data(), memory_.plan.device_gradient_region_bytes());
  if (!memory_.state_is_addressable())
    kernels_->Clear(memory_.state.data(), memory_.plan.state_region_bytes());
  // The worker starts an epoch once all of its executors are ready.
  if (own == 0) {
    const MappedParameters& parameters = memory_.parameters;
    kernels_->Clear(parameters.region.data(), parameters.plan.region_bytes());
    for (const Buffer& slot : parameters.slots) {
      if (!slot.empty()) kernels_->Clear(slot.data(), parameters.plan.slot_bytes());
    }
  }
  RETURN_IF_ERROR(kernels_->Finish());
  // Release: set only when the memory is clear. A successor of a killed executor clears again.
  cleared.store(1, std::memory_order_release);
  return absl::OkStatus();
}

bool RankExecutor::Handle(const v1::ExecutorCommand& command, std::vector<UniqueFd> fds) {
  switch (command.command_case()) {
    case v1::ExecutorCommand::kStart: {
      const Epoch epoch(command.start().epoch());
      const absl::Status status = StartEpoch(command.start());
      // A start that failed ends its epoch, not the executor, if the device still works.
      if (status.ok()) return true;
      if (!CheckDevice(epoch)) return false;
      ReportFailure(epoch, status);
      return true;
    }
    case v1::ExecutorCommand::kRelease:
      // By this thread, while the engine's waits for it: no thread that reads commands waits for a
      // release.
      link_.OnRelease(command.release());
      return true;
    case v1::ExecutorCommand::kAbort: {
      const absl::StatusCode code = command.abort().code() == 0
                                        ? absl::StatusCode::kAborted
                                        : static_cast<absl::StatusCode>(command.abort().code());
      // Joins the engine's thread: after this nothing writes to the job's memory.
      Quiesce(absl::Status(code, command.abort().reason()));
      // Stuck in a library: quiet cannot be promised.
      if (!IsWell(Epoch(command.abort().epoch()), communicators_.status())) return false;
      return Answer(command.abort());
    }
    case v1::ExecutorCommand::kPut:
      puts_.Give(command.put(), fds.empty() ? UniqueFd() : std::move(fds[0]));
      return true;
    case v1::ExecutorCommand::kDropPut:
      puts_.Drop(command.drop_put().put());
      return true;
    case v1::ExecutorCommand::kRequestedSave:
      files_.SetRequest(command.requested_save());
      return true;
    case v1::ExecutorCommand::kStop:
    case v1::ExecutorCommand::COMMAND_NOT_SET:
      return false;
  }
  return false;
}

RankEngine::Options RankExecutor::EngineOptions(Epoch epoch) {
  RankEngine::Options options;
  options.layout = &memory_.layout;
  options.config = &memory_.config;
  options.memory = &memory_.plan;
  options.topology = &memory_.topology;
  options.rank = memory_.rank;
  options.epoch = epoch;
  options.parameters = memory_.parameters.units;
  options.state = memory_.state.data_as<std::byte>();
  const int own = memory_.topology.LocalIndex(static_cast<int>(memory_.rank.value()));
  const int first = memory_.topology.FirstRank(memory_.host());
  options.own_gradients = memory_.gradients[own].data();
  options.gradients_by_rank.resize(memory_.config.world_size, nullptr);
  for (size_t i = 0; i < memory_.gradients.size(); ++i)
    options.gradients_by_rank[first + i] = memory_.gradients[i].data();
  // In place of the host's: kernels of the device read these.
  for (size_t i = 0; i < memory_.device_gradients.size(); ++i)
    options.gradients_by_rank[first + i] = memory_.device_gradients[i].data_as<std::byte>();
  if (memory_.device->is_separate())
    options.device_gradients = memory_.device_gradients[own].data_as<std::byte>();
  options.gradient_events = gradient_events_.get();
  options.window_events = window_events_.get();
  options.slots = communicators_.slots();
  options.images = images_.get();
  options.must_publish = memory_.in_process;
  options.kernels = kernels_.get();
  options.stream_kernels = stream_kernels_.get();
  options.control = memory_.control_page();
  options.group = memory_.group_page();
  options.updates = memory_.update_counts();
  options.buffers = buffers_.get();
  options.communicator = communicators_.reduce();
  options.gatherer = communicators_.gather();
  options.host = communicators_.of_host();
  options.post_backward = post_backward_.get();
  options.gate = &link_;
  options.recorder = &recorder_;
  options.files = &files_;
  options.puts = &puts_;
  return options;
}

absl::Status RankExecutor::StartEpoch(const v1::ExecutorStart& start) {
  const Epoch epoch(start.epoch());
  // The communicators below replace those that its threads use.
  if (engine_ != nullptr) Quiesce(absl::AbortedError("a new epoch starts"));
  // Waits for the peers of the epoch, at most until the collective timeout.
  RETURN_IF_ERROR(communicators_.Join(epoch, start));
  // All ranks passed the barrier of the first values if one has noted it. All executors of a worker
  // may have died between the barrier and their note.
  // A rank that is rebuilt gets this word together with its values (RestoreHostProgress).
  if (communicators_.job_has_values() && !memory_.lacks_values())
    memory_.group_page()->initialized.store(1, std::memory_order_release);
  if (memory_.device->is_separate()) {
    gradient_events_ =
        // Of this epoch: a trainer that has attached since has other events.
        std::make_unique<GradientEvents>(memory_.device.get(), memory_.control_page());
    window_events_ = std::make_unique<GradientEvents>(memory_.device.get(), memory_.control_page());
  }
  // Before the engine may fail: what it reports names this epoch.
  running_epoch_.store(epoch.value());
  link_.BeginEpoch(epoch);
  recorder_.BeginEpoch(epoch);
  // After the row was joined: a save of this epoch agrees with its ranks over it.
  files_.BeginEpoch(communicators_.files());
  engine_ = std::make_unique<RankEngine>(EngineOptions(epoch));
  // A rebuild waits for other ranks, so it is not done on the thread that hears of aborts.
  if (start.rebuilt_ranks_size() > 0) {
    ASSIGN_OR_RETURN(engine_thread_,
                     StartThread("the rank's engine", [this, start] { RebuildAndRun(start); }));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool runs, BeginEngine(start));
  if (!runs) return absl::OkStatus();
  ASSIGN_OR_RETURN(engine_thread_,
                   StartThread("the rank's engine", [this, epoch] { RunEngine(epoch); }));
  return absl::OkStatus();
}

absl::Status RankExecutor::Rebuild(const v1::ExecutorStart& start) {
  const int rank = static_cast<int>(memory_.rank.value());
  const std::set<int> rebuilt(start.rebuilt_ranks().begin(), start.rebuilt_ranks().end());
  ASSIGN_OR_RETURN(const ReplicaDuties duties,
                   DutiesOf(rank, rebuilt, memory_.layout, memory_.config.world_size));
  ReplicaExchange::Options options;
  options.memory = &memory_;
  options.kernels = kernels_.get();
  options.image = images_ == nullptr ? nullptr : &images_->staged;
  options.buffers = buffers_.get();
  options.move = [this](int peer, absl::Span<const PeerMesh::Part> sends,
                        absl::Span<const PeerMesh::Part> receives) {
    return communicators_.ExchangeWith(peer, sends, receives);
  };
  ReplicaExchange exchange(std::move(options));
  if (duties.source.has_value()) {
    RETURN_IF_ERROR(exchange.ReceiveFrom(*duties.source, start.resume_step()));
    TESSERA_LOG(INFO, "job {} rank {}: has its shards of step {} from rank {}", memory_.job_id,
                rank, start.resume_step(), *duties.source);
    return absl::OkStatus();
  }
  // What it gives is what it comes to.
  // It may have a decided step to make up first.
  RETURN_IF_ERROR(engine_->Reach(Step(start.resume_step())));
  for (const int target : duties.targets)
    RETURN_IF_ERROR(exchange.SendTo(target, start.resume_step()));
  return absl::OkStatus();
}

absl::StatusOr<bool> RankExecutor::BeginEngine(const v1::ExecutorStart& start) {
  RETURN_IF_ERROR(engine_->Start(Step(start.resume_step())));
  v1::ExecutorEvent event;
  event.mutable_started()->set_epoch(start.epoch());
  link_.Send(event);
  if (start.frozen()) {
    // The shard is at its step, and nothing that the trainer asks for is done.
    PublishFailure(memory_.control_page(), static_cast<uint32_t>(start.epoch()),
                   absl::AbortedError(absl::StrCat("the job is handed over at step ",
                                                   start.resume_step(), ": no step is taken")));
    return false;
  }
  if (const std::string fake =
          FakeText(memory_.config.fake_all_gather, memory_.config.fake_reduce_scatter);
      !fake.empty()) {
    TESSERA_LOG(WARNING, "job {} trains nothing useful: {}", memory_.job_id, fake);
  }
  return true;
}

void RankExecutor::RebuildAndRun(const v1::ExecutorStart& start) {
  absl::Status status = Rebuild(start);
  // None runs before all are whole: their waits for each other are shorter than a rebuild may be.
  // In the files' row, whose patience is longer.
  if (status.ok()) status = communicators_.files()->Barrier();
  if (status.ok()) {
    const absl::StatusOr<bool> runs = BeginEngine(start);
    if (runs.ok() && *runs) return RunEngine(Epoch(start.epoch()));
    status = runs.status();
  }
  EndRun(Epoch(start.epoch()), status);
}

void RankExecutor::RunEngine(Epoch epoch) { EndRun(epoch, engine_->Run()); }

void RankExecutor::EndRun(Epoch epoch, const absl::Status& status) {
  // Whatever the engine returned, a device that fails is the cause.
  if (!CheckDevice(epoch)) return;
  if (status.ok()) return;  // Nothing was to be run.
  // Aborted: a peer failed, and reports it. Told by the worker: it knows.
  if (!absl::IsAborted(status) && !link_.aborted()) ReportFailure(epoch, status);
}

void RankExecutor::Leave() {
  // Ranks of other workers look at their connections where they move something, and what this one
  // has sent them comes. A communicator that moves it directly ends for all of them.
  if (engine_ == nullptr || !engine_thread_.joinable() || communicators_.moves_directly() ||
      files_.saves_in_background()) {
    return;
  }
  link_.AbortEpoch(absl::AbortedError("the executor ends"));  // Not a failure of its own.
  if (!engine_->Leave()) return;
  engine_thread_.join();
  // No abort of the communicators: peers may still read what this rank sent.
  engine_.reset();
  communicators_.Leave();
  v1::ExecutorEvent event;
  // Unasked: the worker takes that as having left, and the epoch goes on without this executor.
  event.mutable_quiesced()->set_epoch(running_epoch_.load());
  link_.Send(event);
}

bool RankExecutor::CheckDevice(Epoch epoch) {
  return IsWell(epoch, communicators_.status()) && IsWell(epoch, kernels_->Finish());
}

bool RankExecutor::IsWell(Epoch epoch, const absl::Status& status) {
  if (status.ok()) return true;
  ReportFailure(epoch, status);
  {
    absl::MutexLock lock(&mu_);
    // Before the socket is cut, which wakes the thread that reads it.
    device_status_ = status;
  }
  shutdown(socket_, SHUT_RD);
  return false;
}

bool RankExecutor::Answer(const v1::ExecutorAbort& abort) {
  v1::ExecutorEvent event;
  event.mutable_quiesced()->set_epoch(abort.epoch());
  if (abort.prepare() && memory_.spans_workers()) {
    // A new mesh, and with it a new secret, for each preparation.
    const absl::StatusOr<std::string> address = communicators_.Listen(Epoch(abort.epoch()));
    if (!address.ok()) {
      TESSERA_LOG(ERROR, "{}", address.status().ToString());
      return false;  // The worker reports the end, and later starts another.
    }
    event.mutable_quiesced()->set_address(*address);
  }
  link_.Send(event);
  return true;
}

void RankExecutor::ReportFailure(Epoch epoch, const absl::Status& status) {
  TESSERA_LOG(WARNING, "epoch {} failed: {}", epoch.value(), status.ToString());
  v1::ExecutorEvent event;
  event.mutable_failure()->set_job_id(memory_.job_id);
  event.mutable_failure()->set_epoch(epoch.value());
  event.mutable_failure()->set_rank(memory_.rank.value());
  event.mutable_failure()->set_reason(PrintableUtf8(status.message()));
  // Of the trainer's own error its peers get the code too.
  if (engine_ != nullptr && engine_->trainer_failed())
    event.mutable_failure()->set_code(status.raw_code());
  link_.Send(event);
}

void RankExecutor::SendFailure(const absl::Status& status) {
  TESSERA_LOG(WARNING, "epoch {} failed: {}", running_epoch_.load(), status.ToString());
  v1::ExecutorEvent event;
  event.mutable_failure()->set_job_id(memory_.job_id);
  event.mutable_failure()->set_epoch(running_epoch_.load());
  event.mutable_failure()->set_rank(memory_.rank.value());
  event.mutable_failure()->set_reason(PrintableUtf8(status.message()));
  link_.Send(event);
}

void RankExecutor::SendPutGone(uint64_t put, const std::string& failure) {
  v1::ExecutorEvent event;
  event.mutable_put_gone()->set_put(put);
  event.mutable_put_gone()->set_failure(PrintableUtf8(failure));
  link_.Send(event);
}

void RankExecutor::SendSaveReport(v1::SaveReport report) {
  report.set_job_id(memory_.job_id);
  report.set_epoch(running_epoch_.load());
  report.set_rank(memory_.rank.value());
  v1::ExecutorEvent event;
  *event.mutable_save() = std::move(report);
  link_.Send(event);
}

void RankExecutor::Quiesce(const absl::Status& reason) {
  // The reason first, so that the threads that end find it.
  link_.AbortEpoch(reason);
  // In this order: saves look at the flag, collectives at the abort, the engine at its interrupt.
  files_.Stop();
  if (communicators_.files() != nullptr) communicators_.files()->Abort(reason);
  if (engine_ != nullptr) engine_->Stop(reason);
  if (engine_thread_.joinable()) engine_thread_.join();
  engine_.reset();
  // A save in the background uses the files' communicator, which ends below.
  files_.EndEpoch();
  // After the engine's thread: it reads the offered put without a lock.
  puts_.EndEpoch();
  // Last: no thread is left that could be in a collective.
  communicators_.Leave();
}

absl::Status RankExecutor::Close() {
  if (communicators_.status().ok()) Quiesce(absl::AbortedError("the executor ends"));
  return communicators_.status();
}

// Until the worker stops it, or is gone, or the device has failed.
absl::Status Obey(int socket, RankExecutor* executor) {
  while (true) {
    absl::StatusOr<Packet> packet = ReceivePacket(socket);
    // A failed device has cut the socket's reading side.
    RETURN_IF_ERROR(executor->device_status());
    if (!packet.ok()) {  // The worker is gone, or the trainer that has this executor.
      executor->Leave();
      return absl::OkStatus();
    }
    v1::ExecutorCommand command;
    // A message that is malformed is as good as a worker that is gone.
    if (!command.ParseFromString(packet->bytes) ||
        !executor->Handle(command, std::move(packet->fds)))
      return executor->device_status();
  }
}

}  // namespace

absl::Status RunRankExecutor(UniqueFd socket, const ExecutorMachine& machine) {
  // The first packet, and the only one with the job's memory. Before it there is nothing to end.
  ASSIGN_OR_RETURN(Packet setup, ReceivePacket(socket.get()));
  absl::StatusOr<ExecutorMemory> memory =
      ExecutorMemory::FromSetup(std::move(setup), machine.make_device);
  if (!memory.ok()) {
    // Its end alone would not say why.
    v1::ExecutorEvent event;
    event.mutable_failure()->set_reason(PrintableUtf8(memory.status().message()));
    // If it does not arrive, the worker still sees the end.
    (void)SendPacket(socket.get(), event.SerializeAsString());
    return memory.status();
  }
  RankExecutor executor(socket.get(), *std::move(memory), machine);
  RETURN_IF_ERROR(executor.Open());
  const absl::Status status = Obey(socket.get(), &executor);
  // What is destroyed from here on might wait for the stuck call, or take away what it uses.
  const absl::Status stuck = executor.Close();
  // Nothing is destroyed: a stuck thread uses it.
  if (!stuck.ok() && machine.end_process != nullptr)
    machine.end_process(status.ok() ? stuck : status);
  return status;
}

}  // namespace tessera
