#include "coordinator/core/worker_reports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/restart_required.h"
#include "base/status_macros.h"
#include "coordinator/core/job_views.h"
#include "coordinator/core/rank_watch.h"

namespace tessera::coordinator {
namespace {

bool HasRankOn(const Job& job, const WorkerId& worker) {
  return !IsOver(job.status.state) && job.status.HasRankOn(worker);
}

// Whether a worker without a rank of the job holds steps of it that this state never had.
bool HasUnknownSteps(const Job& job, const WorkerId& worker, const JobProgress& progress) {
  if (IsOver(job.status.state) || HasRankOn(job, worker)) return false;
  return std::any_of(progress.ranks.begin(), progress.ranks.end(), [&](const auto& rank) {
    return rank.second.step.value() > job.committed_step.value() + 1;
  });
}

constexpr Rank kWholeWorker(-1);

// A rank that is on the worker, or -1.
Rank FirstRankOn(const Job& job, const WorkerId& worker) {
  for (size_t rank = 0; rank < job.status.placements.size(); ++rank) {
    if (job.status.placements[rank].worker == worker) return Rank(rank);
  }
  return kWholeWorker;
}

}  // namespace

void WorkerReports::ResendOnConnect(const Sender& sender, Effects* effects) const {
  for (const auto& [id, job] : state_->jobs()) {
    const auto& placements = job.status.placements;
    const bool placed_on_sender =
        std::any_of(placements.begin(), placements.end(), [&](const RankPlacement& p) {
          // A later life of the worker has lost the job's memory, so the old epoch is not for it.
          return p.worker == sender.worker && p.incarnation == sender.incarnation;
        });
    if (placed_on_sender && !IsOver(job.status.state)) ResendJob(sender, id, job, effects);
  }
}

void WorkerReports::ResendJob(const Sender& sender, const JobId& id, const Job& job,
                              Effects* effects) const {
  if (job.status.state == JobState::kRunning) {
    effects->commands.push_back(
        // A worker that has started this epoch already ignores the repetition.
        {sender.worker, StartEpoch{id, job.generation, job.status.epoch, job.status.resume_step,
                                   job.status.rank_addresses, job.status.decision, job.IsFrozen(),
                                   job.status.rebuilt_ranks}});
    saves_->SendRequest(id, {sender.worker}, effects);
    return;
  }
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  if (runtime != nullptr && runtime->gather.HasAnswered(sender.worker)) return;
  if (effects->changed_jobs.count(id) > 0) return;  // Opening the epoch has sent the command.
  effects->commands.push_back(
      {sender.worker,
       PrepareEpoch{ViewJob(*state_, id, job), job.status.reason, !job.status.bound,
                    state_->durable().deleted().Newest(id), job.status.failure_code}});
}

absl::Status WorkerReports::Heartbeat(const Sender& sender, const std::vector<JobProgress>& jobs,
                                      absl::Time now, Effects* effects) {
  std::set<Orphans::Key> unknown;
  for (const JobProgress& progress : jobs) {
    const Job* known = state_->FindJob(progress.job);
    const bool is_known = known != nullptr && known->generation == progress.generation;
    const bool was_deleted =
        !is_known && progress.generation <= state_->durable().deleted().Newest(progress.job);
    const bool is_ahead =
        is_known && (Orphans::Holder(progress).IsAheadOf(known->status.epoch, known->HasBegun()) ||
                     state_->IsBehind(progress.job, *known) ||
                     HasUnknownSteps(*known, sender.worker, progress));
    // What the journal does not know may be the only copy of a job, so it is never dropped here.
    if (!was_deleted && (!is_known || is_ahead)) {
      unknown.insert({progress.job, progress.generation});
      orphans_->HearOfHeldJob(sender, progress, now, effects);
      continue;
    }
    // It missed the command to drop the job, for example because it was disconnected.
    if (was_deleted || !HasRankOn(*known, sender.worker)) {
      effects->commands.push_back({sender.worker, DropJob{progress.job, progress.generation}});
      continue;
    }
    for (const auto& [rank, status] : progress.ranks) {
      ASSIGN_OR_RETURN(const Job* job, CurrentJob(sender, progress.job, progress.generation,
                                                  progress.epoch, Rank(rank)));
      // The report is of another epoch, and so are its other ranks.
      if (job == nullptr) break;
      EpochRuntime& runtime = state_->Runtime(progress.job, *job);
      runtime.ranks[rank] = status;
      RankStatus& seen = runtime.last_seen[rank];
      const RankStatus before = std::exchange(seen, status);
      // Until its executor is in the epoch, a rank tells of no place. It is where it was.
      if (status.step == Step(0)) {
        seen.step = before.step;
        seen.pass = before.pass;
        seen.sequence = before.sequence;
      }
      if (job->status.state != JobState::kRunning) continue;
      const OrderPosition place = {status.step, status.sequence, status.pass};
      runtime.hangs.Heard(Rank(rank), place);
      runtime.stragglers.Heard(Rank(rank), status.step, status.compute_seconds, now);
      ApplyVerdict(progress.job, runtime.order.Progress(Rank(rank), place), now, effects);
    }
    UpdateCompleted(progress.job, now, effects);
  }
  // After the whole heartbeat: a job that it does not list is one that the worker no longer holds.
  state_->orphans.Listed(sender.worker, unknown);
  return absl::OkStatus();
}

void WorkerReports::UpdateCompleted(const JobId& id, absl::Time now, Effects* effects) {
  const Job& job = *state_->FindJob(id);
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  if (job.status.state != JobState::kRunning || runtime == nullptr || runtime->failure) return;
  bool is_done = runtime->ranks.size() == job.status.placements.size(), has_trainer = false;
  std::map<int32_t, Incarnation> finished;
  for (const auto& [rank, status] : runtime->ranks) {
    has_trainer |= status.attached;
    // A rank whose trainer has not come again since the job was continued is not done.
    const auto before = job.status.completed_after.find(rank);
    const bool is_new =
        before == job.status.completed_after.end() || before->second != status.finished;
    is_done &= !status.attached && status.finished != Incarnation() && is_new;
    finished[rank] = status.finished;
  }
  if (job.status.completed ? !has_trainer : !is_done) return;
  JobStatus next = job.status;
  next.completed = is_done;
  if (is_done) {
    next.completed_after = std::move(finished);
    RankWatch::EndOf(id, job, &state_->Runtime(id, job), effects);
  }
  next.reason = is_done
                    ? "all of its trainers are done; its devices are free, and its state is kept"
                    : "a trainer has come again";
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  effects->changed_jobs.insert(id);
  if (is_done) epochs_->AdvanceAll(now, effects);  // Others may get its devices.
}

absl::StatusOr<const Job*> WorkerReports::CurrentJob(const Sender& sender, const JobId& id,
                                                     Generation generation, Epoch epoch,
                                                     Rank rank) const {
  const Job* job = state_->FindJob(id);
  if (job == nullptr || job->generation != generation || job->status.epoch != epoch) return nullptr;
  if (!HasEpoch(job->status.state)) return nullptr;
  const auto& placements = job->status.placements;
  if (rank.value() < 0 || rank.value() >= static_cast<int64_t>(placements.size())) {
    return absl::InvalidArgumentError(absl::StrCat("job '", id.value(), "' has no rank ",
                                                   rank.value(), "; its world size is ",
                                                   placements.size()));
  }
  if (placements[rank.value()].worker != sender.worker) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job '", id.value(), "', epoch ", epoch.value(), ": rank ", rank.value(), " is on worker '",
        placements[rank.value()].worker.value(), "', not on '", sender.worker.value(), "'"));
  }
  return job;
}

absl::Status WorkerReports::Announce(const Sender& sender, const OrderAnnouncement& event,
                                     absl::Time now, Effects* effects) {
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.generation, event.epoch, event.rank));
  if (job == nullptr || job->status.state != JobState::kRunning) return absl::OkStatus();
  const int64_t num_units = job->spec->model.units.size();
  if (event.entry.unit.value() < -1 || event.entry.unit.value() >= num_units) {
    return absl::InvalidArgumentError(absl::StrCat("job '", event.job.value(), "' has no unit ",
                                                   event.entry.unit.value(), "; it has ",
                                                   num_units));
  }
  // The record grows to this position, so a worker must not choose it freely.
  if (event.position.sequence < 0 || event.position.sequence >= kMaxSequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job '", event.job.value(), "', rank ", event.rank.value(), ": position ",
        event.position.sequence, " is not within the ", kMaxSequence, " operations of a step"));
  }
  EpochRuntime& runtime = state_->Runtime(event.job, *job);
  // It has come to the operation, though it may not issue it before the others have come too.
  OrderPosition place = event.position;
  ++place.sequence;
  runtime.hangs.Heard(event.rank, place);
  ApplyVerdict(event.job, runtime.order.Announce(event.rank, event.position, event.entry), now,
               effects);
  return absl::OkStatus();
}

void WorkerReports::ApplyVerdict(const JobId& id, const OrderVerdict& verdict, absl::Time now,
                                 Effects* effects) {
  const Job& job = *state_->FindJob(id);
  for (const Rank rank : verdict.released) {
    const WorkerId& worker = job.status.placements[rank.value()].worker;
    effects->commands.push_back(
        {worker, OrderRelease{id, job.generation, job.status.epoch, rank, verdict.position}});
  }
  if (verdict.recorded.has_value()) {
    // Ranks wait for the release, so it does not wait for the disk as other records do.
    effects->order_records.push_back({id, job.status.epoch, verdict.position, *verdict.recorded});
  }
  if (verdict.mismatch.has_value()) {
    const bool restart = epochs_->RequireRestart(id);
    const std::string message =
        absl::StrCat(*verdict.mismatch,
                     restart ? "; processes of the job had ended, and those in their place may "
                               "be elsewhere in the program: start all ranks' programs again"
                             : "");
    epochs_->FailEpoch(
        id,
        {message,
         OrderMismatch{id, job.generation, job.status.epoch, verdict.position, message, restart},
         restart ? kRestartRequired : static_cast<int>(absl::StatusCode::kFailedPrecondition),
         EpochCause::kOrderMismatch},
        now, effects);
  }
}

absl::Status WorkerReports::ReportStep(const Sender& sender, const StepReport& event,
                                       absl::Time now, Effects* effects) {
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.generation, event.epoch, event.rank));
  if (job == nullptr || job->status.state != JobState::kRunning) return absl::OkStatus();
  EpochRuntime& runtime = state_->Runtime(event.job, *job);
  // Reports of steps that follow each other quickly travel together.
  std::vector<uint64_t> hashes = event.earlier_order_hashes;
  hashes.push_back(event.order_hash);
  const int64_t last = event.step.value(), count = hashes.size();
  for (int64_t i = 0; i < count; ++i) {
    const Step step(last - count + 1 + i);
    OrderVerdict verdict = runtime.order.Finished(event.rank, step);
    const auto differs = runtime.ledger.Report(event.rank, step, hashes[i]);
    // The validator's mismatch names the operations, so it is preferred to that of the hashes.
    if (differs.has_value() && !verdict.mismatch.has_value()) {
      verdict.position = {step, 0};
      verdict.mismatch =
          absl::StrCat("ranks ", differs->first.value(), " and ", differs->second.value(),
                       " issued different operations in step ", step.value(),
                       ": the hashes of their execution orders differ");
    }
    const bool ends_the_epoch = verdict.mismatch.has_value();
    ApplyVerdict(event.job, verdict, now, effects);
    // What was reported of later steps belongs to an epoch that is over.
    if (ends_the_epoch) break;
  }
  return absl::OkStatus();
}

absl::Status WorkerReports::ReportFailure(const Sender& sender, const RankFailure& event,
                                          absl::Time now, Effects* effects) {
  Rank rank = event.rank;
  if (const Job* job = state_->FindJob(event.job); job != nullptr && rank == kWholeWorker) {
    // CurrentJob checks a rank. Any rank on the worker stands for the worker.
    rank = FirstRankOn(*job, sender.worker);
  }
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.generation, event.epoch, rank));
  if (job == nullptr) return absl::OkStatus();
  // A bound job must not leave the worker that holds its shards, even if that worker fails.
  const bool may_go_elsewhere =
      !job->status.bound || job->status.unconfirmed.count(sender.worker) > 0;
  if (event.rank == kWholeWorker && may_go_elsewhere)
    state_->avoided[event.job].Add(sender.worker, sender.incarnation,
                                   now + state_->options.refusal_pause);
  const std::string who =
      event.rank == kWholeWorker ? "" : absl::StrCat("rank ", rank.value(), " on ");
  epochs_->FailEpoch(
      event.job,
      {absl::StrCat(who, "worker '", sender.worker.value(), "' failed: ", event.reason),
       std::nullopt, event.code},
      now, effects);
  return absl::OkStatus();
}

absl::Status WorkerReports::ReportPrepared(const Sender& sender, const EpochPrepared& event,
                                           absl::Time now, Effects* effects) {
  const Job* job = state_->FindJob(event.job);
  if (job == nullptr || job->generation != event.generation) return absl::OkStatus();
  const auto avoided = state_->avoided.find(event.job);
  // The job may use a worker again that it avoided, once the worker answers.
  const bool answers_again =
      avoided != state_->avoided.end() && avoided->second.Remove(sender.worker);
  if (job->status.epoch == event.epoch) {
    EpochPrepared answer = event;
    // Before the job's first epoch there is nothing to hold.
    answer.holds_nothing &= job->status.bound && job->status.state != JobState::kRunning;
    state_->Runtime(event.job, *job).gather.Add(sender.worker, answer);
  }
  if (answers_again || job->status.state == JobState::kStarting)
    epochs_->Advance(event.job, now, effects);
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
