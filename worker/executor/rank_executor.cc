#include "worker/executor/rank_executor.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
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
#include "worker/comm/hosts/hosts_communicator.h"
#include "worker/comm/shm/shm_communicator.h"
#include "worker/device/host/host_device.h"
#include "worker/engine/rank_engine.h"
#include "worker/executor/epoch_meshes.h"
#include "worker/executor/executor_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/executor_puts.h"
#include "worker/executor/keeper_link.h"

namespace tessera {
namespace {

class RankExecutor {
 public:
  RankExecutor(int socket, ExecutorMemory memory)
      : memory_(std::move(memory)),
        link_({socket, memory_.job_id, memory_.rank, memory_.config.collective_timeout,
               &memory_.layout}),
        files_(
            &memory_, [this](const std::string& path) { link_.ReportSaving(path); },
            [this](const absl::Status& status) { SendFailure(status); },
            [this](const v1::SaveReport& report) { SendSaveReport(report); }),
        puts_(memory_.plan.num_parameters(),
              [this](uint64_t put, const std::string& failure) { SendPutGone(put, failure); }),
        recorder_(memory_.flight_ring()) {}
  ~RankExecutor() { Quiesce(absl::AbortedError("the executor ends")); }

  absl::Status Open();
  // `fds`: that came with it. False: stop.
  bool Handle(const v1::ExecutorCommand& command, std::vector<UniqueFd> fds);

 private:
  absl::Status CreateKernels();
  // Once in a job's life, before its first epoch.
  absl::Status ClearDeviceMemory();
  absl::Status StartEpoch(const v1::ExecutorStart& start);
  // Storage may be slow, and other ranks' larger; whoever dies is noticed otherwise.
  absl::Duration TimeoutOf(Row row) const {
    return row == Row::kFiles ? absl::Hours(1) : memory_.config.collective_timeout;
  }
  // Of this worker's ranks.
  absl::StatusOr<std::unique_ptr<ShmCommunicator>> JoinHost(Epoch epoch, Row row);
  // The communicator of a row of operations in `epoch`; one across workers takes its mesh.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(Epoch epoch, Row row,
                                                     const v1::ExecutorStart& start);
  RankEngine::Options EngineOptions(Epoch epoch);
  void RunEngine(Epoch epoch);
  void Quiesce(const absl::Status& reason);
  // Says that the rank is quiet; where it is to prepare an epoch across workers, it listens first.
  // False: stop.
  bool Answer(const v1::ExecutorAbort& abort);
  void ReportFailure(Epoch epoch, const absl::Status& status);
  // Of the epoch that runs, told by a thread that is neither the engine's nor this one.
  void SendFailure(const absl::Status& status);
  void SendPutGone(uint64_t put, const std::string& failure);
  void SendSaveReport(v1::SaveReport report);

  ExecutorMemory memory_;
  KeeperLink link_;
  ExecutorFiles files_;
  ExecutorPuts puts_;
  std::atomic<uint64_t> running_epoch_{0};
  FlightRecorder recorder_;
  HostDevice threads_;
  std::unique_ptr<Stream> post_backward_;
  // Of the engine's thread, of the stream, and of whoever reduces on it.
  std::unique_ptr<RankKernels> kernels_, stream_kernels_, reduce_kernels_;
  std::unique_ptr<StateImages> images_;  // Null: the state is addressable.
  std::unique_ptr<EpochMeshes> meshes_;  // Null: all ranks are on this worker.
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> files_communicator_;
  std::unique_ptr<Communicator> gatherer_;  // These two null: all ranks are on this worker.
  std::unique_ptr<Communicator> of_host_;
  std::unique_ptr<RankEngine> engine_;
  std::thread engine_thread_;
};

absl::Status RankExecutor::Open() {
  ASSIGN_OR_RETURN(post_backward_, threads_.CreateStream("post-backward"));
  RETURN_IF_ERROR(CreateKernels());
  if (memory_.device->is_separate()) RETURN_IF_ERROR(ClearDeviceMemory());
  memory_.control_page()->executor_pid.store(getpid());
  v1::ExecutorEvent event;
  event.mutable_ready();
  link_.Send(event);
  return absl::OkStatus();
}

absl::Status RankExecutor::CreateKernels() {
  RankDevice::KernelOptions options;
  options.state_on_host = memory_.state_is_addressable();
  for (const UnitLayout& unit : memory_.layout.units)
    options.max_count = std::max(options.max_count, unit.shards.shard_numel());
  ASSIGN_OR_RETURN(kernels_, memory_.device->CreateKernels(options));
  ASSIGN_OR_RETURN(stream_kernels_, memory_.device->CreateKernels(options));
  ASSIGN_OR_RETURN(reduce_kernels_, memory_.device->CreateKernels(options));
  if (memory_.state_is_addressable()) return absl::OkStatus();
  std::byte* state = memory_.state.data_as<std::byte>();
  const OptimizerKind optimizer = memory_.config.optimizer;
  images_.reset(new StateImages{StateImage(&memory_.plan, optimizer, state),
                                StateImage(&memory_.plan, optimizer, state)});
  return absl::OkStatus();
}

absl::Status RankExecutor::ClearDeviceMemory() {
  const int own = memory_.topology.LocalIndex(static_cast<int>(memory_.rank.value()));
  std::atomic<uint32_t>& cleared = memory_.group_page()->ranks[own].device_cleared;
  if (cleared.load(std::memory_order_acquire) != 0) return absl::OkStatus();
  const Buffer& gradients = memory_.device_gradients[own];
  kernels_->Clear(gradients.data(), memory_.plan.device_gradient_region_bytes());
  if (!memory_.state_is_addressable())
    kernels_->Clear(memory_.state.data(), memory_.plan.state_region_bytes());
  // The worker starts an epoch once all of its executors are ready.
  if (own == 0) kernels_->Clear(memory_.parameters.data(), memory_.plan.parameter_region_bytes());
  RETURN_IF_ERROR(kernels_->Finish());
  cleared.store(1, std::memory_order_release);
  return absl::OkStatus();
}

bool RankExecutor::Handle(const v1::ExecutorCommand& command, std::vector<UniqueFd> fds) {
  switch (command.command_case()) {
    case v1::ExecutorCommand::kStart: {
      const absl::Status status = StartEpoch(command.start());
      if (!status.ok()) ReportFailure(Epoch(command.start().epoch()), status);
      return true;
    }
    case v1::ExecutorCommand::kRelease:
      link_.OnRelease(command.release());
      return true;
    case v1::ExecutorCommand::kAbort: {
      const absl::StatusCode code = command.abort().code() == 0
                                        ? absl::StatusCode::kAborted
                                        : static_cast<absl::StatusCode>(command.abort().code());
      Quiesce(absl::Status(code, command.abort().reason()));
      return Answer(command.abort());
    }
    case v1::ExecutorCommand::kPut:
      puts_.Give(command.put(), fds.empty() ? UniqueFd() : std::move(fds[0]));
      return true;
    case v1::ExecutorCommand::kDropPut:
      puts_.Drop(command.drop_put().put());
      return true;
    case v1::ExecutorCommand::kSaveWish:
      files_.SetWish(command.save_wish());
      return true;
    case v1::ExecutorCommand::kStop:
    case v1::ExecutorCommand::COMMAND_NOT_SET:
      return false;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<ShmCommunicator>> RankExecutor::JoinHost(Epoch epoch, Row row) {
  const RankTopology& topology = memory_.topology;
  const int rank = static_cast<int>(memory_.rank.value()), host = memory_.host();
  ShmCommunicator::Options shm;
  shm.base = memory_.group.data() + ChannelOffsetBytes(memory_.plan);
  shm.bytes = memory_.group.size_bytes() - ChannelOffsetBytes(memory_.plan);
  shm.rank = topology.LocalIndex(rank);
  shm.size = topology.NumRanks(host);
  shm.channel = static_cast<int>(row);
  shm.epoch = static_cast<uint32_t>(epoch.value());
  shm.timeout = TimeoutOf(row);
  shm.first_rank = topology.FirstRank(host);
  shm.group_size = topology.world_size();
  if (memory_.device->is_separate()) shm.kernels = reduce_kernels_.get();
  return ShmCommunicator::Create(shm);
}

absl::StatusOr<std::unique_ptr<Communicator>> RankExecutor::Join(Epoch epoch, Row row,
                                                                 const v1::ExecutorStart& start) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShmCommunicator> local, JoinHost(epoch, row));
  if (!memory_.spans_workers()) return local;
  if (meshes_ == nullptr) return absl::InternalError("the epoch was not prepared");
  HostsCommunicator::Options options;
  options.topology = memory_.topology;
  options.rank = static_cast<int>(memory_.rank.value());
  options.local = std::move(local);
  options.timeout = TimeoutOf(row);
  // The worker ends the epoch in shared memory, while this thread reads none of its commands.
  const auto ended = [local = options.local.get()] { return local->aborted(); };
  ASSIGN_OR_RETURN(
      options.mesh,
      meshes_->Connect(row, start, absl::Now() + memory_.config.collective_timeout, ended));
  return std::make_unique<HostsCommunicator>(std::move(options));
}

RankEngine::Options RankExecutor::EngineOptions(Epoch epoch) {
  RankEngine::Options options;
  options.layout = &memory_.layout;
  options.config = &memory_.config;
  options.memory = &memory_.plan;
  options.topology = &memory_.topology;
  options.rank = memory_.rank;
  options.epoch = epoch;
  options.parameters = memory_.parameters.data_as<std::byte>();
  options.state = memory_.state.data_as<std::byte>();
  const int own = memory_.topology.LocalIndex(static_cast<int>(memory_.rank.value()));
  const int first = memory_.topology.FirstRank(memory_.host());
  options.own_gradients = memory_.gradients[own].data();
  options.gradients_by_rank.resize(memory_.config.world_size, nullptr);
  for (size_t i = 0; i < memory_.gradients.size(); ++i)
    options.gradients_by_rank[first + i] = memory_.gradients[i].data();
  for (size_t i = 0; i < memory_.device_gradients.size(); ++i)
    options.gradients_by_rank[first + i] = memory_.device_gradients[i].data_as<std::byte>();
  if (memory_.device->is_separate())
    options.device_gradients = memory_.device_gradients[own].data_as<std::byte>();
  options.images = images_.get();
  options.kernels = kernels_.get();
  options.stream_kernels = stream_kernels_.get();
  options.control = memory_.control_page();
  options.group = memory_.group_page();
  options.updates = memory_.update_counts();
  options.communicator = communicator_.get();
  options.gatherer = gatherer_.get();
  options.host = of_host_.get();
  options.post_backward = post_backward_.get();
  options.gate = &link_;
  options.recorder = &recorder_;
  options.files = &files_;
  options.puts = &puts_;
  return options;
}

absl::Status RankExecutor::StartEpoch(const v1::ExecutorStart& start) {
  const Epoch epoch(start.epoch());
  if (engine_ != nullptr) Quiesce(absl::AbortedError("a new epoch starts"));
  ASSIGN_OR_RETURN(communicator_, Join(epoch, Row::kReduce, start));
  ASSIGN_OR_RETURN(files_communicator_, Join(epoch, Row::kFiles, start));
  if (memory_.spans_workers()) {
    ASSIGN_OR_RETURN(gatherer_, Join(epoch, Row::kGather, start));
    ASSIGN_OR_RETURN(of_host_, JoinHost(epoch, Row::kHost));
  }
  running_epoch_.store(epoch.value());
  link_.BeginEpoch(epoch);
  recorder_.BeginEpoch(epoch);
  files_.BeginEpoch(files_communicator_.get());
  engine_ = std::make_unique<RankEngine>(EngineOptions(epoch));
  RETURN_IF_ERROR(engine_->Start(Step(start.resume_step())));
  if (start.frozen()) {
    // The shard is at its step, and nothing that the trainer asks for is done.
    PublishFailure(memory_.control_page(), static_cast<uint32_t>(epoch.value()),
                   absl::AbortedError(absl::StrCat("the job is handed over at step ",
                                                   start.resume_step(), ": no step is taken")));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(engine_thread_,
                   StartThread("the rank's engine", [this, epoch] { RunEngine(epoch); }));
  if (const std::string fake =
          FakeText(memory_.config.fake_all_gather, memory_.config.fake_reduce_scatter);
      !fake.empty()) {
    TESSERA_LOG(WARNING, "job {} trains nothing of use: {}", memory_.job_id, fake);
  }
  v1::ExecutorEvent event;
  event.mutable_started()->set_epoch(epoch.value());
  link_.Send(event);
  return absl::OkStatus();
}

void RankExecutor::RunEngine(Epoch epoch) {
  const absl::Status status = engine_->Run();
  // Aborted: a peer failed, and reports it. Told by the worker: it knows.
  if (!absl::IsAborted(status) && !link_.aborted()) ReportFailure(epoch, status);
}

bool RankExecutor::Answer(const v1::ExecutorAbort& abort) {
  v1::ExecutorEvent event;
  event.mutable_quiesced()->set_epoch(abort.epoch());
  if (abort.prepare() && memory_.spans_workers()) {
    auto meshes = EpochMeshes::Listen(memory_.topology, memory_.rank, Epoch(abort.epoch()),
                                      memory_.data_host);
    if (!meshes.ok()) {
      TESSERA_LOG(ERROR, "{}", meshes.status().ToString());
      return false;  // The worker reports the end, and later starts another.
    }
    meshes_ = *std::move(meshes);
    event.mutable_quiesced()->set_address(meshes_->address());
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
  link_.AbortEpoch(reason);
  files_.Stop();
  if (files_communicator_ != nullptr) files_communicator_->Abort(reason);
  if (engine_ != nullptr) engine_->Stop(reason);
  if (engine_thread_.joinable()) engine_thread_.join();
  engine_.reset();
  files_.EndEpoch();
  puts_.EndEpoch();
  files_communicator_.reset();
  communicator_.reset();
  gatherer_.reset();
  of_host_.reset();
  meshes_.reset();
}

}  // namespace

absl::Status RunRankExecutor(UniqueFd socket, const MakeRankDevice& make_device) {
  ASSIGN_OR_RETURN(Packet setup, ReceivePacket(socket.get()));
  ASSIGN_OR_RETURN(ExecutorMemory memory, ExecutorMemory::FromSetup(std::move(setup), make_device));
  RankExecutor executor(socket.get(), std::move(memory));
  RETURN_IF_ERROR(executor.Open());
  while (true) {
    absl::StatusOr<Packet> packet = ReceivePacket(socket.get());
    if (!packet.ok()) return absl::OkStatus();  // The worker is gone.
    v1::ExecutorCommand command;
    if (!command.ParseFromString(packet->bytes) ||
        !executor.Handle(command, std::move(packet->fds)))
      return absl::OkStatus();
  }
}

}  // namespace tessera
