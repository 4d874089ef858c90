#include "worker/keeper/epoch_machine.h"

#include <algorithm>
#include <cstddef>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/restart_required.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "shm/control_page.h"
#include "worker/keeper/decision_codec.h"

namespace tessera {
namespace {

bool Answers(const v1::OrderRelease& release, const v1::OrderAnnouncement& announcement) {
  return release.step() == announcement.step() && release.pass() == announcement.pass() &&
         release.sequence() == announcement.sequence();
}

}  // namespace

void EpochMachine::EndThatOfDaemonBefore() {
  const absl::Status reason = absl::AbortedError("the worker's daemon was replaced");
  const LocalRanks& local = context_->local();
  // As if an epoch of that daemon ran: it then ends as any other, and a new one follows.
  epoch_ = Epoch(job_.epoch());
  phase_ = EpochPhase::kRunning;
  for (int rank = local.first(); rank < local.first() + local.count(); ++rank) {
    ControlPage* page = context_->regions.control(Rank(rank));
    // Trainers that wait on the page must learn that nobody works on what they wait for.
    // Of the epoch in the page: the one in the vault's note may never have started here.
    if (page->failed_epoch.load() < page->epoch.load())
      PublishFailure(page, page->epoch.load(), reason);
    // Readers of a version were in the daemon.
    StateHold& hold = context_->RecordOf(Rank(rank)).hold;
    // A hold without a holder would keep the executor waiting before each vote.
    hold.held.store(0);
    Bump(&hold.changes);
  }
  Fail(Rank(local.first()), std::string(reason.message()));
}

void EpochMachine::Close(const absl::Status& reason) {
  is_closed_ = true;
  AbortAll(epoch_, reason);
}

void EpochMachine::AbortAll(Epoch ended, const absl::Status& reason, bool prepare) {
  // Ranks in a collective first: they read shared memory, not their sockets.
  context_->regions.AbortCollectives(ended, reason);
  v1::ExecutorCommand command;
  // Not `ended`: the answer counts for the epoch that is prepared.
  command.mutable_abort()->set_epoch(epoch_.value());
  // A proto's strings are UTF-8, and reasons quote paths and libraries.
  command.mutable_abort()->set_reason(PrintableUtf8(reason.message()));
  command.mutable_abort()->set_code(reason.raw_code());
  command.mutable_abort()->set_prepare(prepare);
  for (ExecutorSlot& slot : *executors_) {
    // An operation that waited for its release is not in the new epoch's order.
    slot.pending_order.Clear();
    slot.Send(command);
  }
}

void EpochMachine::PrepareRank(ExecutorSlot& slot) const {
  v1::ExecutorCommand command;
  command.mutable_abort()->set_epoch(epoch_.value());
  command.mutable_abort()->set_reason("a new epoch begins");
  command.mutable_abort()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  command.mutable_abort()->set_prepare(true);
  slot.Send(command);
}

void EpochMachine::Fail(Rank rank, const std::string& reason, EpochEvent event,
                        absl::StatusCode code) {
  // Several ranks fail at once: the first one's reason is told, later ones change nothing.
  if (Transition(phase_, event) == phase_) return;
  phase_ = Transition(phase_, event);
  TESSERA_LOG(WARNING, "job {} epoch {} failed: {}", context_->job_id, epoch_.value(), reason);
  // Here at once. The coordinator's prepare comes only after it has told all workers.
  AbortAll(epoch_, absl::Status(code, reason));
  v1::RankFailure* failure = failure_.mutable_failure();
  failure->set_job_id(context_->job_id);
  failure->set_generation(context_->generation);
  failure->set_epoch(epoch_.value());
  failure->set_rank(rank.value());
  failure->set_reason(PrintableUtf8(reason));
  // Aborted is what is assumed: the step was undone and may be tried again.
  if (code != absl::StatusCode::kAborted) failure->set_code(static_cast<int>(code));
  context_->emit(failure_);
}

void EpochMachine::EndOfRank(Rank rank, const std::string& reason, EpochEvent event) {
  ControlPage* page = context_->regions.control(rank);
  const uint32_t ended = page->epoch.load();
  // Its executor is dead and did not tell the trainer. If it had, that word stays.
  if (page->failed_epoch.load() < ended) PublishFailure(page, ended, absl::AbortedError(reason));
  Fail(rank, reason, event);
}

void EpochMachine::Prepare(const v1::PrepareEpoch& prepare) {
  FaultPoint("job.prepare").IgnoreError();  // A place to hang in, not to fail.
  const Epoch epoch(prepare.job().epoch());
  // From a coordinator with an older journal: its epoch has been over for long (docs/adr/0062).
  if (epoch < epoch_) return;
  // A repeat: the coordinator, or the connection, lost the answer.
  if (epoch == epoch_) {
    if (phase_ == EpochPhase::kPrepared) context_->emit(PreparedEvent());
    return;
  }
  job_ = prepare.job();
  // The vault's note comes before the word below: CheckMemory in job_vault.cc relies on it.
  if (context_->vault != nullptr) context_->vault->NoteJob(context_->vault_owner, job_);
  // In memory that outlives this daemon.
  context_->regions.group()->prepared_epoch.store(epoch.value());
  // The error of another worker's rank may come this way first.
  const absl::Status reason(prepare.code() == 0 ? absl::StatusCode::kAborted
                                                : static_cast<absl::StatusCode>(prepare.code()),
                            prepare.reason());
  const Epoch ended = epoch_;
  // Set before executors are told, so that an answer of theirs counts for this epoch.
  epoch_ = epoch;
  phase_ = Transition(phase_, EpochEvent::kPrepare);
  preparing_since_ = SteadyNow();
  // The coordinator has gone past it, and it need not be repeated after a reconnect.
  failure_.Clear();
  // Quiet is said of one epoch: each executor says it again of this one.
  for (ExecutorSlot& slot : *executors_) slot.quiet = false;
  AbortAll(ended, reason, /*prepare=*/true);  // Also answered by an executor outside an epoch.
}

void EpochMachine::MaybePrepared() {
  if (phase_ != EpochPhase::kPreparing) return;
  for (const ExecutorSlot& slot : *executors_) {
    // An executor that ends would not come into the new epoch.
    if (!slot.ready || !slot.quiet || slot.ending) return;
  }
  phase_ = Transition(phase_, EpochEvent::kAllQuiet);
  // All is quiet: no executor runs while the pages are looked at.
  context_->regions.SetTaken();
  context_->emit(PreparedEvent());
}

v1::WorkerEvent EpochMachine::PreparedEvent() const {
  const JobRegions& regions = context_->regions;
  const LocalRanks& local = context_->local();
  v1::WorkerEvent event;
  event.mutable_prepared()->set_job_id(context_->job_id);
  event.mutable_prepared()->set_generation(context_->generation);
  event.mutable_prepared()->set_epoch(epoch_.value());
  event.mutable_prepared()->set_decided_step(regions.group()->decided_step.load());
  const GroupPage& group = *regions.group();
  const bool lacks_values =
      std::any_of(group.ranks, group.ranks + local.count(),
                  [](const RankRecord& rank) { return rank.lacks_values.load() != 0; });
  // A rebuild that did not end counts as nothing: those ranks are rebuilt again (docs/adr/0063).
  event.mutable_prepared()->set_holds_nothing(group.has_begun.load() == 0 || lacks_values);
  // A lone worker decides in its own page, and no other worker needs a copy.
  if (!local.spans_workers()) return event;
  event.mutable_prepared()->set_decision(
      EncodeDecision(*regions.group(), regions.update_counts(), regions.config().groups.size()));
  int rank = local.first();
  // Addresses are of this epoch: each preparation makes new ones, with new secrets.
  for (const ExecutorSlot& slot : *executors_)
    (*event.mutable_prepared()->mutable_rank_addresses())[rank++] = slot.address;
  return event;
}

std::optional<v1::WorkerEvent> EpochMachine::Unacknowledged() const {
  if (phase_ == EpochPhase::kPrepared) return PreparedEvent();
  if (phase_ == EpochPhase::kFailed && failure_.has_failure()) return failure_;
  return std::nullopt;
}

absl::Status EpochMachine::LearnDecision(const v1::StartEpoch& start) const {
  const JobRegions& regions = context_->regions;
  // This worker counted the votes itself, or has had the decision.
  if (regions.group()->decided_step.load() >= start.resume_step()) return absl::OkStatus();
  return RecordDecision(start.decision(), start.resume_step(), regions.group(),
                        regions.update_counts(), regions.config().groups.size());
}

void EpochMachine::Start(const v1::StartEpoch& start) {
  // A start that is late or repeated has no effect.
  if (start.epoch() != epoch_.value() || phase_ != EpochPhase::kPrepared) return;
  const LocalRanks& local = context_->local();
  const bool is_rebuilt = std::any_of(start.rebuilt_ranks().begin(), start.rebuilt_ranks().end(),
                                      [&local](int32_t rank) { return local.Has(rank); });
  // What is rebuilt learns it from another rank.
  // Without the decision its ranks could not redo the step that others have taken.
  const absl::Status learned = is_rebuilt ? absl::OkStatus() : LearnDecision(start);
  if (!learned.ok()) return Fail(Rank(local.first()), std::string(learned.message()));
  phase_ = Transition(phase_, EpochEvent::kStart);
  for (const int32_t rank : start.rebuilt_ranks()) {
    // Before executors are told: if one dies on the way, the next preparation says that it lacks
    // them.
    if (local.Has(rank)) context_->RecordOf(Rank(rank)).lacks_values.store(1);
  }
  // From here on the memory has something that must not be lost.
  context_->regions.group()->has_begun.store(1);
  v1::ExecutorCommand command;
  *command.mutable_start()->mutable_rank_addresses() = start.rank_addresses();
  command.mutable_start()->set_epoch(start.epoch());
  command.mutable_start()->set_resume_step(start.resume_step());
  command.mutable_start()->set_frozen(start.frozen());
  *command.mutable_start()->mutable_rebuilt_ranks() = start.rebuilt_ranks();
  for (ExecutorSlot& slot : *executors_) {
    slot.quiet = false;
    // The epoch has an executor for each rank again, so the end of one ends the epoch.
    slot.vacant = false;
    slot.Send(command);
  }
  TESSERA_LOG(INFO, "job {} epoch {} starts after step {}", context_->job_id, start.epoch(),
              start.resume_step());
}

void EpochMachine::Release(const v1::OrderRelease& release) {
  // A release of an older epoch would let an operation go on that nobody matches now.
  if (release.epoch() != epoch_.value() || !context_->local().Has(release.rank())) return;
  ExecutorSlot& slot = executors_->Of(Rank(release.rank()));
  // Not repeated any more after a reconnect. What was announced twice is released twice, and the
  // second release may come when the rank waits at its next position.
  if (Answers(release, slot.pending_order)) slot.pending_order.Clear();
  v1::ExecutorCommand command;
  *command.mutable_release() = release;
  slot.Send(command);
}

void EpochMachine::Mismatch(const v1::OrderMismatch& mismatch) {
  if (mismatch.epoch() != epoch_.value()) return;
  if (Transition(phase_, EpochEvent::kFailure) == phase_) return;
  phase_ = Transition(phase_, EpochEvent::kFailure);
  TESSERA_LOG(ERROR, "job {} epoch {}: {}", context_->job_id, epoch_.value(), mismatch.message());
  // The coordinator knows already, so no event follows.
  AbortAll(epoch_, absl::Status(mismatch.restart() ? static_cast<absl::StatusCode>(kRestartRequired)
                                                   : absl::StatusCode::kFailedPrecondition,
                                mismatch.message()));
}

}  // namespace tessera
