#include "worker/keeper/hosted_job.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// Between two launches of a rank's executor that cannot start.
constexpr absl::Duration kRelaunchDelay = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Create(const v1::Job& job,
                                                             ExecutorLauncher* launcher,
                                                             Emit emit) {
  ASSIGN_OR_RETURN(JobRegions regions, JobRegions::Create(job));
  std::unique_ptr<HostedJob> hosted(
      new HostedJob(job, std::move(regions), launcher, std::move(emit)));
  const int world_size = hosted->regions_.config().world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    hosted->supervisors_.emplace_back([job = hosted.get(), rank] { job->Supervise(Rank(rank)); });
  }
  return hosted;
}

HostedJob::HostedJob(const v1::Job& job, JobRegions regions, ExecutorLauncher* launcher, Emit emit)
    : job_id_(job.job_id()),
      regions_(std::move(regions)),
      launcher_(launcher),
      emit_(std::move(emit)),
      job_(job),
      ranks_(regions_.config().world_size) {}

HostedJob::~HostedJob() {
  const absl::Status reason =
      absl::CancelledError(absl::StrCat("job '", job_id_, "' ends on this worker"));
  Epoch epoch;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
    epoch = epoch_;
    AbortAllLocked(epoch, reason);
    for (RankSlot& slot : ranks_) {
      if (slot.socket.valid()) shutdown(slot.socket.get(), SHUT_RDWR);
      if (slot.executor != nullptr) slot.executor->Kill();
    }
  }
  for (std::thread& supervisor : supervisors_) supervisor.join();
  // An executor may have been killed before it could tell its trainer.
  for (int rank = 0; rank < regions_.config().world_size; ++rank) {
    PublishToTrainer(Rank(rank), epoch, reason);
  }
}

void HostedJob::PublishToTrainer(Rank rank, Epoch epoch, const absl::Status& reason) const {
  ControlPage* page = regions_.control(rank);
  const uint32_t ended = static_cast<uint32_t>(epoch.value());
  if (page->failed_epoch.load() < ended) PublishFailure(page, ended, reason);
}

void HostedJob::Supervise(Rank rank) {
  while (true) {
    const int socket = LaunchExecutor(rank);
    if (socket < 0) return;
    while (true) {
      absl::StatusOr<Packet> packet = ReceivePacket(socket);
      v1::ExecutorEvent event;
      if (!packet.ok() || !event.ParseFromString(packet->bytes)) break;
      OnEvent(rank, event);
    }
    OnExecutorDied(rank);
  }
}

int HostedJob::LaunchExecutor(Rank rank) {
  while (true) {
    v1::Job job;
    {
      absl::MutexLock lock(&mu_);
      if (closing_) return -1;
      job = job_;
    }
    auto sockets = CreatePacketSocketPair();
    absl::Status status = sockets.status();
    if (status.ok()) {
      auto executor =
          launcher_->Launch(std::move(sockets->second), absl::StrCat(job_id_, "/", rank.value()));
      status = executor.status();
      if (status.ok()) status = regions_.SendSetup(sockets->first.get(), job, rank);
      if (status.ok()) {
        absl::MutexLock lock(&mu_);
        RankSlot& slot = ranks_[rank.value()];
        slot.socket = std::move(sockets->first);
        slot.executor = *std::move(executor);
        if (!closing_) return slot.socket.get();
        shutdown(slot.socket.get(), SHUT_RDWR);
        slot.executor->Kill();
        return slot.socket.get();  // Reads its end, then comes back here.
      }
    }
    TESSERA_LOG(ERROR, "job {} rank {}: no executor: {}", job_id_, rank.value(), status.ToString());
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&closing_), kRelaunchDelay);
  }
}

void HostedJob::OnExecutorDied(Rank rank) {
  std::unique_ptr<RunningExecutor> executor;
  {
    absl::MutexLock lock(&mu_);
    RankSlot& slot = ranks_[rank.value()];
    executor = std::move(slot.executor);
    slot.ready = false;
    slot.quiet = false;
    slot.pending_order.Clear();
    slot.socket.Reset();
  }
  // The socket is closed, so either it is dead or it is beyond use.
  executor->Kill();
  const std::string how = executor->Wait();
  absl::MutexLock lock(&mu_);
  if (closing_) return;
  TESSERA_LOG(WARNING, "job {} rank {}: executor {}", job_id_, rank.value(), how);
  const std::string reason = absl::StrCat("the executor of rank ", rank.value(), " ended: ", how);
  PublishToTrainer(rank, Epoch(regions_.control(rank)->epoch.load()), absl::AbortedError(reason));
  FailLocked(rank, reason);
}

void HostedJob::OnEvent(Rank rank, const v1::ExecutorEvent& event) {
  absl::MutexLock lock(&mu_);
  RankSlot& slot = ranks_[rank.value()];
  v1::WorkerEvent out;
  switch (event.event_case()) {
    case v1::ExecutorEvent::kReady:
      slot.ready = slot.quiet = true;
      MaybePreparedLocked();
      return;
    case v1::ExecutorEvent::kQuiesced:
      if (event.quiesced().epoch() < epoch_.value()) return;
      slot.quiet = true;
      MaybePreparedLocked();
      return;
    case v1::ExecutorEvent::kOrder:
      if (event.order().epoch() != epoch_.value()) return;
      slot.pending_order = event.order();
      *out.mutable_order() = event.order();
      break;
    case v1::ExecutorEvent::kStep:
      slot.last_report = event.step();
      *out.mutable_step() = event.step();
      break;
    case v1::ExecutorEvent::kFailure:
      if (event.failure().epoch() == epoch_.value()) {
        FailLocked(rank, absl::StrCat("rank ", rank.value(), ": ", event.failure().reason()));
      }
      return;
    case v1::ExecutorEvent::kStarted:
    case v1::ExecutorEvent::EVENT_NOT_SET:
      return;
  }
  emit_(out);
}

void HostedJob::SendLocked(RankSlot& slot, const v1::ExecutorCommand& command) {
  // A full or closed socket means a stuck or dead executor; its supervisor sees the end.
  if (slot.ready &&
      !SendPacket(slot.socket.get(), command.SerializeAsString(), {}, /*wait=*/false).ok()) {
    shutdown(slot.socket.get(), SHUT_RDWR);
  }
}

void HostedJob::AbortAllLocked(Epoch ended, const absl::Status& reason) {
  regions_.AbortCollectives(ended, reason);
  v1::ExecutorCommand command;
  command.mutable_abort()->set_epoch(epoch_.value());
  command.mutable_abort()->set_reason(std::string(reason.message()));
  command.mutable_abort()->set_code(reason.raw_code());
  for (RankSlot& slot : ranks_) {
    slot.pending_order.Clear();
    SendLocked(slot, command);
  }
}

void HostedJob::FailLocked(Rank rank, const std::string& reason) {
  if (Transition(phase_, EpochEvent::kFailure) == phase_) return;
  phase_ = Transition(phase_, EpochEvent::kFailure);
  TESSERA_LOG(WARNING, "job {} epoch {} failed: {}", job_id_, epoch_.value(), reason);
  AbortAllLocked(epoch_, absl::AbortedError(reason));
  v1::RankFailure* failure = failure_.mutable_failure();
  failure->set_job_id(job_id_);
  failure->set_epoch(epoch_.value());
  failure->set_rank(rank.value());
  failure->set_reason(reason);
  emit_(failure_);
}

void HostedJob::Prepare(const v1::PrepareEpoch& prepare) {
  absl::MutexLock lock(&mu_);
  const Epoch epoch(prepare.job().epoch());
  if (epoch < epoch_) return;
  if (epoch == epoch_) {
    if (phase_ == EpochPhase::kPrepared) emit_(PreparedEventLocked());
    return;
  }
  job_ = prepare.job();
  const absl::Status reason = absl::AbortedError(prepare.reason());
  const Epoch ended = epoch_;
  epoch_ = epoch;
  phase_ = Transition(phase_, EpochEvent::kPrepare);
  failure_.Clear();
  for (RankSlot& slot : ranks_) slot.quiet = false;
  AbortAllLocked(ended, reason);  // Also answered by an executor that was in no epoch.
}

void HostedJob::MaybePreparedLocked() {
  if (phase_ != EpochPhase::kPreparing) return;
  for (const RankSlot& slot : ranks_) {
    if (!slot.ready || !slot.quiet) return;
  }
  phase_ = Transition(phase_, EpochEvent::kAllQuiet);
  emit_(PreparedEventLocked());
}

v1::WorkerEvent HostedJob::PreparedEventLocked() const {
  v1::WorkerEvent event;
  event.mutable_prepared()->set_job_id(job_id_);
  event.mutable_prepared()->set_epoch(epoch_.value());
  event.mutable_prepared()->set_decided_step(regions_.group()->decided_step.load());
  return event;
}

void HostedJob::Start(const v1::StartEpoch& start) {
  absl::MutexLock lock(&mu_);
  if (start.epoch() != epoch_.value() || phase_ != EpochPhase::kPrepared) return;
  phase_ = Transition(phase_, EpochEvent::kStart);
  v1::ExecutorCommand command;
  command.mutable_start()->set_epoch(start.epoch());
  command.mutable_start()->set_resume_step(start.resume_step());
  for (RankSlot& slot : ranks_) {
    slot.quiet = false;
    SendLocked(slot, command);
  }
  TESSERA_LOG(INFO, "job {} epoch {} starts after step {}", job_id_, start.epoch(),
              start.resume_step());
}

void HostedJob::Release(const v1::OrderRelease& release) {
  absl::MutexLock lock(&mu_);
  if (release.epoch() != epoch_.value() || release.rank() < 0 ||
      release.rank() >= static_cast<int>(ranks_.size())) {
    return;
  }
  RankSlot& slot = ranks_[release.rank()];
  slot.pending_order.Clear();
  v1::ExecutorCommand command;
  *command.mutable_release() = release;
  SendLocked(slot, command);
}

void HostedJob::Mismatch(const v1::OrderMismatch& mismatch) {
  absl::MutexLock lock(&mu_);
  if (mismatch.epoch() != epoch_.value()) return;
  if (Transition(phase_, EpochEvent::kFailure) == phase_) return;
  phase_ = Transition(phase_, EpochEvent::kFailure);
  TESSERA_LOG(ERROR, "job {} epoch {}: {}", job_id_, epoch_.value(), mismatch.message());
  AbortAllLocked(epoch_, absl::FailedPreconditionError(mismatch.message()));
}

}  // namespace tessera
