// Handles the events of workers, for coordinator.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/coordinator.h"

namespace tessera::coordinator {
namespace {

bool HasRankOn(const Job& job, const WorkerId& worker) {
  if (IsOver(job.status.state)) return false;
  return std::any_of(job.status.placements.begin(), job.status.placements.end(),
                     [&](const RankPlacement& p) { return p.worker == worker; });
}

// Whether a worker without a rank of the job holds steps of it that this state never had.
bool HasUnknownSteps(const Job& job, const WorkerId& worker, const JobProgress& progress) {
  if (IsOver(job.status.state) || HasRankOn(job, worker)) return false;
  return std::any_of(progress.ranks.begin(), progress.ranks.end(), [&](const auto& rank) {
    return rank.second.step.value() > job.committed_step.value() + 1;
  });
}

constexpr Rank kWholeWorker(-1);
// Lives of one worker that have not begun.
constexpr size_t kMaxArrivals = 8;

// A rank that is on the worker, or -1.
Rank FirstRankOn(const Job& job, const WorkerId& worker) {
  for (size_t rank = 0; rank < job.status.placements.size(); ++rank) {
    if (job.status.placements[rank].worker == worker) return Rank(rank);
  }
  return kWholeWorker;
}

}  // namespace

absl::Status Coordinator::RegisterWorker(const WorkerId& worker, const Member& member,
                                         absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(state_.members().CheckRegister(worker, member));
  const Member* known = state_.members().Find(worker);
  if (known == nullptr &&
      static_cast<int64_t>(state_.members().members().size()) >= options_.max_workers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", options_.max_workers, " workers already"));
  }
  if (known != nullptr && known->incarnation < member.incarnation) {
    RETURN_IF_ERROR(CheckMayFollow(worker));
    RETURN_IF_ERROR(CheckKey(worker, member.incarnation, member.key));
    std::map<Incarnation, Member>& arrivals = arrivals_[worker];
    arrivals.erase(arrivals.begin(), arrivals.upper_bound(known->incarnation));
    arrivals[member.incarnation] = member;
    if (arrivals.size() > kMaxArrivals) arrivals.erase(arrivals.begin());
    return absl::OkStatus();
  }
  liveness_.Heard(worker, now);
  if (known != nullptr && known->address == member.address &&
      known->data_host == member.data_host && known->max_ranks_of_job == member.max_ranks_of_job &&
      known->device == member.device && known->memory_bytes == member.memory_bytes &&
      !known->lost) {
    return absl::OkStatus();
  }
  BeginLife(worker, member, now, effects);
  return absl::OkStatus();
}

absl::Status Coordinator::CheckMayFollow(const WorkerId& worker) const {
  const Member& known = *state_.members().Find(worker);
  if (known.lost || away_.count(worker) > 0) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "worker '", worker.value(), "', incarnation ", known.incarnation.value(),
      ", is connected; another process of its name counts as its restart only once its connection "
      "has ended or it was silent for ",
      absl::FormatDuration(options_.worker_timeout)));
}

const Member* Coordinator::FindArrival(const WorkerId& worker, Incarnation incarnation) const {
  const Member* known = state_.members().Find(worker);
  const auto arrivals = arrivals_.find(worker);
  if (known == nullptr || arrivals == arrivals_.end() || incarnation <= known->incarnation)
    return nullptr;
  const auto arrival = arrivals->second.find(incarnation);
  return arrival == arrivals->second.end() ? nullptr : &arrival->second;
}

Incarnation Coordinator::IncarnationOf(const WorkerId& worker, const std::string& key) const {
  const Incarnation next = state_.members().IncarnationOf(worker, key);
  const Member* known = state_.members().Find(worker);
  const auto arrivals = arrivals_.find(worker);
  if (known == nullptr || known->incarnation == next || arrivals == arrivals_.end()) return next;
  Incarnation last = known->incarnation;
  for (const auto& [incarnation, member] : arrivals->second) {
    if (incarnation > known->incarnation && member.key == key) return incarnation;
    last = std::max(last, incarnation);
  }
  return Incarnation(last.value() + 1);
}

absl::Status Coordinator::CheckKey(const WorkerId& worker, Incarnation incarnation,
                                   const std::string& key) const {
  const Member* arrival = FindArrival(worker, incarnation);
  if (arrival == nullptr || arrival->key == key)
    return state_.members().CheckKey(worker, incarnation, key);
  return absl::PermissionDeniedError(
      absl::StrCat("worker '", worker.value(), "', incarnation ", incarnation.value(),
                   ": this is another process than the one that registered"));
}

void Coordinator::BeginLife(const WorkerId& worker, Member member, absl::Time now,
                            Effects* effects) {
  away_.insert(worker);
  orphans_.Forget(worker);  // They belong to an earlier life.
  Put(MemberRecord{worker, std::move(member)}, effects);
  AdvanceAll(now, effects);
}

absl::Status Coordinator::Hear(const Sender& sender, absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(state_.members().CheckCurrent(sender.worker, sender.incarnation));
  liveness_.Heard(sender.worker, now);
  const Member* member = state_.members().Find(sender.worker);
  if (!member->lost) return absl::OkStatus();
  Member back = *member;
  back.lost = false;
  Put(MemberRecord{sender.worker, std::move(back)}, effects);
  AdvanceAll(now, effects);
  return absl::OkStatus();
}

absl::Status Coordinator::Connect(const Sender& sender, absl::Time now, Effects* effects) {
  if (const Member* arrival = FindArrival(sender.worker, sender.incarnation)) {
    RETURN_IF_ERROR(CheckMayFollow(sender.worker));
    BeginLife(sender.worker, *arrival, now, effects);
  }
  RETURN_IF_ERROR(Hear(sender, now, effects));
  away_.erase(sender.worker);
  ResendOnConnect(sender, effects);
  return absl::OkStatus();
}

void Coordinator::ResendOnConnect(const Sender& sender, Effects* effects) const {
  for (const auto& [id, job] : state_.jobs()) {
    const auto& placements = job.status.placements;
    const bool placed_on_sender =
        std::any_of(placements.begin(), placements.end(), [&](const RankPlacement& p) {
          return p.worker == sender.worker && p.incarnation == sender.incarnation;
        });
    if (placed_on_sender && !IsOver(job.status.state)) ResendJob(sender, id, job, effects);
  }
}

void Coordinator::ResendJob(const Sender& sender, const JobId& id, const Job& job,
                            Effects* effects) const {
  if (job.status.state == JobState::kRunning) {
    effects->commands.push_back(
        {sender.worker, StartEpoch{id, job.creation, job.status.epoch, job.status.resume_step,
                                   job.status.rank_addresses, job.status.decision, job.IsFrozen(),
                                   job.status.rebuilt_ranks}});
    SendWish(id, {sender.worker}, effects);
    return;
  }
  const EpochRuntime* runtime = FindRuntime(id, job);
  if (runtime != nullptr && runtime->gather.HasAnswered(sender.worker)) return;
  if (effects->changed_jobs.count(id) > 0) return;  // Opening the epoch has sent the command.
  effects->commands.push_back(
      {sender.worker, PrepareEpoch{View(id, job), job.status.reason, !job.status.bound,
                                   state_.deleted().Newest(id), job.status.failure_code}});
}

absl::Status Coordinator::Heartbeat(const Sender& sender, const std::vector<JobProgress>& jobs,
                                    absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(Hear(sender, now, effects));
  std::set<Orphans::Key> unknown;
  for (const JobProgress& progress : jobs) {
    const Job* known = state_.FindJob(progress.job);
    const bool is_known = known != nullptr && known->creation == progress.creation;
    const bool was_deleted =
        !is_known && progress.creation <= state_.deleted().Newest(progress.job);
    const bool is_ahead =
        is_known &&
        (Orphans::Holder(progress).IsAheadOf(known->status.epoch, known->HasBegun()) ||
         IsBehind(progress.job, *known) || HasUnknownSteps(*known, sender.worker, progress));
    // What the journal does not know may be the only copy of a job, so it is never dropped here.
    if (!was_deleted && (!is_known || is_ahead)) {
      unknown.insert({progress.job, progress.creation});
      HearOfHeldJob(sender, progress, now, effects);
      continue;
    }
    if (was_deleted || !HasRankOn(*known, sender.worker)) {
      effects->commands.push_back({sender.worker, DropJob{progress.job, progress.creation}});
      continue;
    }
    for (const auto& [rank, status] : progress.ranks) {
      ASSIGN_OR_RETURN(const Job* job, CurrentJob(sender, progress.job, progress.creation,
                                                  progress.epoch, Rank(rank)));
      if (job == nullptr) break;
      EpochRuntime& runtime = Runtime(progress.job, *job);
      runtime.ranks[rank] = runtime.last_seen[rank] = status;
      if (job->status.state != JobState::kRunning) continue;
      ApplyVerdict(progress.job,
                   runtime.order.Progress(Rank(rank), {status.step, status.sequence, status.pass}),
                   now, effects);
    }
  }
  orphans_.Listed(sender.worker, unknown);
  return absl::OkStatus();
}

absl::StatusOr<const Job*> Coordinator::CurrentJob(const Sender& sender, const JobId& id,
                                                   Creation creation, Epoch epoch,
                                                   Rank rank) const {
  const Job* job = state_.FindJob(id);
  if (job == nullptr || job->creation != creation || job->status.epoch != epoch) return nullptr;
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

absl::Status Coordinator::Announce(const Sender& sender, const OrderAnnouncement& event,
                                   absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(Hear(sender, now, effects));
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.creation, event.epoch, event.rank));
  if (job == nullptr || job->status.state != JobState::kRunning) return absl::OkStatus();
  const int64_t num_units = job->spec->model.units.size();
  if (event.entry.unit.value() < -1 || event.entry.unit.value() >= num_units) {
    return absl::InvalidArgumentError(absl::StrCat("job '", event.job.value(), "' has no unit ",
                                                   event.entry.unit.value(), "; it has ",
                                                   num_units));
  }
  if (event.position.sequence < 0 || event.position.sequence >= kMaxSequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job '", event.job.value(), "', rank ", event.rank.value(), ": position ",
        event.position.sequence, " is not within the ", kMaxSequence, " operations of a step"));
  }
  EpochRuntime& runtime = Runtime(event.job, *job);
  ApplyVerdict(event.job, runtime.order.Announce(event.rank, event.position, event.entry), now,
               effects);
  return absl::OkStatus();
}

void Coordinator::ApplyVerdict(const JobId& id, const OrderVerdict& verdict, absl::Time now,
                               Effects* effects) {
  const Job& job = *state_.FindJob(id);
  for (const Rank rank : verdict.released) {
    const WorkerId& worker = job.status.placements[rank.value()].worker;
    effects->commands.push_back(
        {worker, OrderRelease{id, job.creation, job.status.epoch, rank, verdict.position}});
  }
  if (verdict.recorded.has_value()) {
    effects->order_records.push_back({id, job.status.epoch, verdict.position, *verdict.recorded});
  }
  if (verdict.mismatch.has_value()) {
    OrderMismatch mismatch{id, job.creation, job.status.epoch, verdict.position, *verdict.mismatch};
    FailEpoch(id, {*verdict.mismatch, std::move(mismatch)}, now, effects);
  }
}

absl::Status Coordinator::ReportStep(const Sender& sender, const StepReport& event, absl::Time now,
                                     Effects* effects) {
  RETURN_IF_ERROR(Hear(sender, now, effects));
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.creation, event.epoch, event.rank));
  if (job == nullptr || job->status.state != JobState::kRunning) return absl::OkStatus();
  EpochRuntime& runtime = Runtime(event.job, *job);
  std::vector<uint64_t> hashes = event.earlier_order_hashes;
  hashes.push_back(event.order_hash);
  const int64_t last = event.step.value(), count = hashes.size();
  for (int64_t i = 0; i < count; ++i) {
    const Step step(last - count + 1 + i);
    OrderVerdict verdict = runtime.order.Finished(event.rank, step);
    const auto differs = runtime.ledger.Report(event.rank, step, hashes[i]);
    if (differs.has_value() && !verdict.mismatch.has_value()) {
      verdict.position = {step, 0};
      verdict.mismatch =
          absl::StrCat("ranks ", differs->first.value(), " and ", differs->second.value(),
                       " issued different operations in step ", step.value(),
                       ": the hashes of their execution orders differ");
    }
    const bool ends_the_epoch = verdict.mismatch.has_value();
    ApplyVerdict(event.job, verdict, now, effects);
    if (ends_the_epoch) break;
  }
  return absl::OkStatus();
}

absl::Status Coordinator::ReportFailure(const Sender& sender, const RankFailure& event,
                                        absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(Hear(sender, now, effects));
  Rank rank = event.rank;
  if (const Job* job = state_.FindJob(event.job); job != nullptr && rank == kWholeWorker) {
    rank = FirstRankOn(*job, sender.worker);
  }
  ASSIGN_OR_RETURN(const Job* job,
                   CurrentJob(sender, event.job, event.creation, event.epoch, rank));
  if (job == nullptr) return absl::OkStatus();
  const bool may_go_elsewhere =
      !job->status.bound || job->status.unconfirmed.count(sender.worker) > 0;
  if (event.rank == kWholeWorker && may_go_elsewhere)
    avoided_[event.job].Add(sender.worker, sender.incarnation, now + options_.refusal_pause);
  const std::string who =
      event.rank == kWholeWorker ? "" : absl::StrCat("rank ", rank.value(), " on ");
  FailEpoch(event.job,
            {absl::StrCat(who, "worker '", sender.worker.value(), "' failed: ", event.reason),
             std::nullopt, event.code},
            now, effects);
  return absl::OkStatus();
}

absl::Status Coordinator::ReportPrepared(const Sender& sender, const EpochPrepared& event,
                                         absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(Hear(sender, now, effects));
  const Job* job = state_.FindJob(event.job);
  if (job == nullptr || job->creation != event.creation) return absl::OkStatus();
  const auto avoided = avoided_.find(event.job);
  // The job may use a worker again that it avoided, once the worker answers.
  const bool answers_again = avoided != avoided_.end() && avoided->second.Remove(sender.worker);
  if (job->status.epoch == event.epoch) {
    EpochPrepared answer = event;
    // Before the job's first epoch there is nothing to hold.
    answer.holds_nothing &= job->status.bound && job->status.state != JobState::kRunning;
    Runtime(event.job, *job).gather.Add(sender.worker, answer);
  }
  if (answers_again || job->status.state == JobState::kStarting) Advance(event.job, now, effects);
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
