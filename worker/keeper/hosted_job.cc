#include "worker/keeper/hosted_job.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "worker/keeper/decision_codec.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// How long a rank is kept for the trainer that was attached when the daemon before ended: as long
// as a trainer waits.
constexpr absl::Duration kFormerTrainerTimeout = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Create(
    const v1::Job& job, const LocalRanks& local, const std::string& data_host,
    ExecutorLauncher* launcher, Emit emit, DeviceMemory* device_memory,
    absl::Duration answer_timeout, MemoryBudget* budget, JobVault* vault) {
  ASSIGN_OR_RETURN(JobRegions regions, JobRegions::Create(job, local, device_memory, budget));
  if (device_memory != nullptr) vault = nullptr;  // It holds no memory of a GPU.
  std::string owner = vault == nullptr ? "" : vault->PutJob(job, regions);
  std::unique_ptr<HostedJob> hosted(new HostedJob(job, std::move(regions), data_host, launcher,
                                                  std::move(emit), answer_timeout, vault,
                                                  std::move(owner)));
  const absl::Status started = hosted->StartSupervisors();
  if (!started.ok()) hosted->MarkDropped();
  RETURN_IF_ERROR(started);
  return hosted;
}

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Restore(
    JobVault::HeldJob held, const LocalRanks& local, const std::string& data_host,
    ExecutorLauncher* launcher, Emit emit, MemoryBudget* budget, JobVault* vault) {
  ASSIGN_OR_RETURN(JobRegions regions,
                   JobRegions::Restore(held.job, local, budget, std::move(held.memory)));
  std::unique_ptr<HostedJob> hosted(new HostedJob(held.job, std::move(regions), data_host, launcher,
                                                  std::move(emit), kAnswerTimeout, vault,
                                                  std::move(held.owner)));
  hosted->EndEpochOfDaemonBefore(std::move(held.trainers));
  RETURN_IF_ERROR(hosted->StartSupervisors());
  return hosted;
}

absl::Status HostedJob::StartSupervisors() {
  for (int rank = local().first(); rank < local().first() + local().count(); ++rank) {
    ASSIGN_OR_RETURN(std::thread supervisor,
                     StartThread(absl::StrCat("job '", job_id_, "' rank ", rank),
                                 [this, rank] { Supervise(Rank(rank)); }));
    supervisors_.push_back(std::move(supervisor));
  }
  return absl::OkStatus();
}

void HostedJob::EndEpochOfDaemonBefore(std::map<int, UniqueFd> trainers) {
  const absl::Status reason = absl::AbortedError("the worker's daemon was replaced");
  absl::MutexLock lock(&mu_);
  epoch_ = Epoch(job_.epoch());
  phase_ = EpochPhase::kRunning;
  for (int rank = local().first(); rank < local().first() + local().count(); ++rank) {
    ControlPage* page = regions_.control(Rank(rank));
    if (page->failed_epoch.load() < page->epoch.load())
      PublishFailure(page, page->epoch.load(), reason);
    // Readers of a version were in the daemon.
    StateHold& hold = RecordOf(Rank(rank)).hold;
    hold.held.store(0);
    Bump(&hold.changes);
    if (const auto trainer = trainers.find(rank); trainer != trainers.end()) {
      HostedRank& slot = SlotOf(Rank(rank));
      slot.former = Incarnation(RecordOf(Rank(rank)).attachment.load());
      slot.former_process = std::move(trainer->second);
      slot.former_until = SteadyNow() + kFormerTrainerTimeout;
    }
  }
  FailLocked(Rank(local().first()), std::string(reason.message()));
}

HostedJob::HostedJob(const v1::Job& job, JobRegions regions, std::string data_host,
                     ExecutorLauncher* launcher, Emit emit, absl::Duration answer_timeout,
                     JobVault* vault, std::string owner)
    : job_id_(job.job_id()),
      creation_(job.creation()),
      regions_(std::move(regions)),
      data_host_(std::move(data_host)),
      launcher_(launcher),
      emit_(std::move(emit)),
      answer_timeout_(answer_timeout),
      vault_(vault),
      vault_owner_(std::move(owner)),
      job_(job),
      ranks_(regions_.local().count()) {
  // None that an earlier daemon, or the memory before this one, gave.
  if (vault_ != nullptr) next_attachment_ = absl::ToUnixMicros(WallNow());
}

HostedJob::~HostedJob() {
  const absl::Status reason =
      absl::CancelledError(absl::StrCat("job '", job_id_, "' ends on this worker"));
  Epoch epoch;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
    epoch = epoch_;
    AbortAllLocked(epoch, reason);
    for (HostedRank& slot : ranks_) EndExecutorLocked(slot);
  }
  for (std::thread& supervisor : supervisors_) supervisor.join();
  if (vault_ != nullptr && is_dropped_.load()) vault_->Drop(vault_owner_);
  // No executor lives, but perhaps one in a trainer that stands still. One may have been killed
  // before it could tell its trainer, and a trainer that recovers from the end of an epoch must
  // learn that none follows.
  for (int rank = local().first(); rank < local().first() + local().count(); ++rank) {
    ControlPage* page = regions_.control(Rank(rank));
    const uint32_t ended = static_cast<uint32_t>(epoch.value()), failed = page->failed_epoch.load();
    if (failed >= ended && page->failure_code == reason.raw_code()) continue;
    PublishFailure(page, std::max(ended, failed), reason);
  }
}

void HostedJob::SendLocked(HostedRank& slot, const v1::ExecutorCommand& command,
                           absl::Span<const int> fds) {
  // A full or closed socket means a stuck or dead executor; its supervisor sees the end.
  if (slot.ready && !slot.ending &&
      !SendPacket(slot.socket.get(), command.SerializeAsString(), fds, /*wait=*/false).ok()) {
    slot.ending = true;
    shutdown(slot.socket.get(), slot.host == Incarnation() ? SHUT_RDWR : SHUT_WR);
  }
}

Epoch HostedJob::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

bool HostedJob::has_begun() const { return regions_.group()->has_begun.load() != 0; }

void HostedJob::AbortAllLocked(Epoch ended, const absl::Status& reason, bool prepare) {
  regions_.AbortCollectives(ended, reason);
  v1::ExecutorCommand command;
  command.mutable_abort()->set_epoch(epoch_.value());
  command.mutable_abort()->set_reason(PrintableUtf8(reason.message()));
  command.mutable_abort()->set_code(reason.raw_code());
  command.mutable_abort()->set_prepare(prepare);
  for (HostedRank& slot : ranks_) {
    slot.pending_order.Clear();
    SendLocked(slot, command);
  }
}

void HostedJob::PrepareRankLocked(HostedRank& slot) {
  v1::ExecutorCommand command;
  command.mutable_abort()->set_epoch(epoch_.value());
  command.mutable_abort()->set_reason("a new epoch begins");
  command.mutable_abort()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  command.mutable_abort()->set_prepare(true);
  SendLocked(slot, command);
}

void HostedJob::FailLocked(Rank rank, const std::string& reason, EpochEvent event,
                           absl::StatusCode code) {
  if (Transition(phase_, event) == phase_) return;
  phase_ = Transition(phase_, event);
  TESSERA_LOG(WARNING, "job {} epoch {} failed: {}", job_id_, epoch_.value(), reason);
  AbortAllLocked(epoch_, absl::Status(code, reason));
  v1::RankFailure* failure = failure_.mutable_failure();
  failure->set_job_id(job_id_);
  failure->set_creation(creation_);
  failure->set_epoch(epoch_.value());
  failure->set_rank(rank.value());
  failure->set_reason(PrintableUtf8(reason));
  if (code != absl::StatusCode::kAborted) failure->set_code(static_cast<int>(code));
  emit_(failure_);
}

void HostedJob::Prepare(const v1::PrepareEpoch& prepare) {
  absl::MutexLock lock(&mu_);
  FaultPoint("job.prepare").IgnoreError();  // A place to hang in, not to fail.
  const Epoch epoch(prepare.job().epoch());
  if (epoch < epoch_) return;
  if (epoch == epoch_) {
    if (phase_ == EpochPhase::kPrepared) emit_(PreparedEventLocked());
    return;
  }
  job_ = prepare.job();
  if (vault_ != nullptr) vault_->NoteJob(vault_owner_, job_);
  regions_.group()->prepared_epoch.store(epoch.value());
  // The error of another worker's rank may come this way first.
  const absl::Status reason(prepare.code() == 0 ? absl::StatusCode::kAborted
                                                : static_cast<absl::StatusCode>(prepare.code()),
                            prepare.reason());
  const Epoch ended = epoch_;
  epoch_ = epoch;
  phase_ = Transition(phase_, EpochEvent::kPrepare);
  preparing_since_ = SteadyNow();
  failure_.Clear();
  for (HostedRank& slot : ranks_) slot.quiet = false;
  AbortAllLocked(ended, reason,
                 /*prepare=*/true);  // Also answered by an executor outside an epoch.
}

void HostedJob::MaybePreparedLocked() {
  if (phase_ != EpochPhase::kPreparing) return;
  for (const HostedRank& slot : ranks_) {
    if (!slot.ready || !slot.quiet || slot.ending) return;
  }
  phase_ = Transition(phase_, EpochEvent::kAllQuiet);
  regions_.SetTaken();
  emit_(PreparedEventLocked());
}

v1::WorkerEvent HostedJob::PreparedEventLocked() const {
  v1::WorkerEvent event;
  event.mutable_prepared()->set_job_id(job_id_);
  event.mutable_prepared()->set_creation(creation_);
  event.mutable_prepared()->set_epoch(epoch_.value());
  event.mutable_prepared()->set_decided_step(regions_.group()->decided_step.load());
  const GroupPage& group = *regions_.group();
  const bool lacks_values =
      std::any_of(group.ranks, group.ranks + local().count(),
                  [](const RankRecord& rank) { return rank.lacks_values.load() != 0; });
  event.mutable_prepared()->set_holds_nothing(group.has_begun.load() == 0 || lacks_values);
  if (!local().spans_workers()) return event;
  event.mutable_prepared()->set_decision(
      EncodeDecision(*regions_.group(), regions_.update_counts(), regions_.config().groups.size()));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    (*event.mutable_prepared()->mutable_rank_addresses())[local().first() + static_cast<int>(i)] =
        ranks_[i].address;
  }
  return event;
}

v1::HeldJob HostedJob::Describe() const {
  absl::MutexLock lock(&mu_);
  v1::HeldJob held;
  *held.mutable_job() = job_;
  held.mutable_job()->clear_ranks();
  held.mutable_job()->clear_state_reason();
  held.set_decided_step(regions_.group()->decided_step.load());
  held.set_has_begun(has_begun());
  return held;
}

absl::Status HostedJob::LearnDecision(const v1::StartEpoch& start) const {
  if (regions_.group()->decided_step.load() >= start.resume_step()) return absl::OkStatus();
  return RecordDecision(start.decision(), start.resume_step(), regions_.group(),
                        regions_.update_counts(), regions_.config().groups.size());
}

void HostedJob::Start(const v1::StartEpoch& start) {
  absl::MutexLock lock(&mu_);
  if (start.epoch() != epoch_.value() || phase_ != EpochPhase::kPrepared) return;
  const bool is_rebuilt = std::any_of(start.rebuilt_ranks().begin(), start.rebuilt_ranks().end(),
                                      [this](int32_t rank) { return local().Has(rank); });
  // What is rebuilt learns it from another rank.
  const absl::Status learned = is_rebuilt ? absl::OkStatus() : LearnDecision(start);
  if (!learned.ok()) return FailLocked(Rank(local().first()), std::string(learned.message()));
  phase_ = Transition(phase_, EpochEvent::kStart);
  for (const int32_t rank : start.rebuilt_ranks()) {
    if (local().Has(rank)) RecordOf(Rank(rank)).lacks_values.store(1);
  }
  regions_.group()->has_begun.store(1);
  v1::ExecutorCommand command;
  *command.mutable_start()->mutable_rank_addresses() = start.rank_addresses();
  command.mutable_start()->set_epoch(start.epoch());
  command.mutable_start()->set_resume_step(start.resume_step());
  command.mutable_start()->set_frozen(start.frozen());
  *command.mutable_start()->mutable_rebuilt_ranks() = start.rebuilt_ranks();
  for (HostedRank& slot : ranks_) {
    slot.quiet = false;
    slot.vacant = false;
    SendLocked(slot, command);
  }
  TESSERA_LOG(INFO, "job {} epoch {} starts after step {}", job_id_, start.epoch(),
              start.resume_step());
}

void HostedJob::Release(const v1::OrderRelease& release) {
  absl::MutexLock lock(&mu_);
  if (release.epoch() != epoch_.value() || !local().Has(release.rank())) return;
  HostedRank& slot = SlotOf(Rank(release.rank()));
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
