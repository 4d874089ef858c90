#include "coordinator/core/epoch_protocol.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "coordinator/core/job_placer.h"
#include "coordinator/core/job_views.h"

namespace tessera::coordinator {
namespace {

constexpr char kPartIsGone[] = "a part of its shards is gone with a worker's memory";

bool NeedsNoLess(const HostMemory& a, const HostMemory& b) {
  return a.shared_bytes >= b.shared_bytes && a.rank_bytes >= b.rank_bytes;
}

// For jobs that need the same devices: a worker without memory for `b` has none for `a` either.
bool NeedsNoLess(const JobSpec& a, const JobSpec& b) {
  return NeedsNoLess(a.cpu_host_memory, b.cpu_host_memory) &&
         NeedsNoLess(a.gpu_host_memory, b.gpu_host_memory);
}

}  // namespace

void EpochProtocol::AdvanceAll(absl::Time now, Effects* effects) {
  std::vector<JobId> ids;
  for (const auto& [id, job] : state_->jobs()) ids.push_back(id);
  // With many jobs, most are new and wait for devices. Skip a job that needs more devices than are
  // free, and one that needs no less than a job for which there was no place.
  std::optional<int64_t> max_free;  // Counted for new jobs alone: it visits all workers and ranks.
  std::map<std::pair<int32_t, int32_t>, const JobSpec*> in_vain;
  for (const JobId& id : ids) {
    const Job& job = *state_->FindJob(id);
    const JobConfig& config = job.spec->config;
    const std::pair<int32_t, int32_t> needs(config.world_size, config.shard_group_size);
    const bool is_new = job.status.state == JobState::kWaiting && !job.status.bound &&
                        job.status.placements.empty() && state_->avoided.count(id) == 0 &&
                        !state_->IsBehind(id, job);
    const auto other = in_vain.find(needs);
    const bool is_in_vain = other != in_vain.end() && NeedsNoLess(*job.spec, *other->second);
    if (is_new && !max_free.has_value()) max_free = state_->durable().MaxFreeDevices();
    if (is_new && (config.world_size > *max_free || is_in_vain)) continue;
    const size_t num_changes = effects->records.size();
    Advance(id, now, effects);
    // The change may have freed devices or taken some, so what was found out before is void.
    if (effects->records.size() != num_changes) {
      max_free.reset();
      in_vain.clear();
    } else if (is_new) {
      in_vain[needs] = job.spec.get();
    }
  }
}

void EpochProtocol::Advance(const JobId& id, absl::Time now, Effects* effects) {
  const Job& job = *state_->FindJob(id);
  // While workers may still report a later epoch than the journal has, none begins (ADR 62).
  if (IsOver(job.status.state) || state_->IsBehind(id, job) || state_->takes_over()) return;
  // First, because a committed step decides whether the job is lost or begins again.
  if (job.status.bound && JobPlacer(state_).MemoryIsGone(id, job)) {
    FlushStep(id, effects);
    // Without a committed step nothing is lost: the job begins again from its initial values.
    if (job.committed_step > Step(0)) {
      const bool all = WorkersOf(job.status.placements).size() == 1;
      return GiveUp(
          id,
          all ? absl::StrCat("its shards are gone with the memory of ", DescribeWorkers(job.status))
              : kPartIsGone,
          now, effects);
    }
  }
  if (job.status.state == JobState::kWaiting) {
    if (JobPlacer(state_).Place(id, job)) {
      OpenEpoch(
          id,
          !job.status.bound ? "there are enough devices"
          : JobPlacer(state_).LiveWorkers(id, job).size() == WorkersOf(job.status.placements).size()
              ? "its workers are back"
              : "another worker takes over a replica",
          EpochCause::kPlaced, now, effects);
    }
    return;
  }
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  const bool failed = runtime != nullptr && runtime->failure.has_value();
  const bool all_prepared = runtime != nullptr && runtime->gather.complete();
  // A job that could not even be prepared would fail again at once. So it is the next epoch that is
  // delayed, not only its start.
  const bool unprepared = job.status.state == JobState::kStarting && !all_prepared;
  if (failed && (!unprepared || PacerOf(id).MayStart(now))) {
    OpenEpoch(id, runtime->failure->reason, runtime->failure->cause, now, effects);
    return;
  }
  // A worker that is lost or has restarted need not have reported a failure.
  std::string broken = state_->durable().WhyPlacementBroken(job.status);
  if (broken.empty() && job.status.bound && JobPlacer(state_).MemoryIsGone(id, job))
    broken = kPartIsGone;
  if (!broken.empty()) {
    OpenEpoch(id, broken, EpochCause::kWorkerLost, now, effects);
    return;
  }
  if (job.status.state != JobState::kStarting || !all_prepared || failed) return;
  // A worker knows decided steps that nobody reported before other shards were lost.
  const bool in_part = !job.status.bound && runtime->gather.ResumeStep(Step(0)) > Step(0);
  if (in_part) return GiveUp(id, kPartIsGone, now, effects);
  if (PacerOf(id).MayStart(now)) BeginEpoch(id, effects);
}

void EpochProtocol::OpenEpoch(const JobId& id, const std::string& reason, EpochCause cause,
                              absl::Time now, Effects* effects) {
  // First, because the ledger of this epoch is not found once the epoch has changed.
  FlushStep(id, effects);
  const Job job = *state_->FindJob(id);  // A copy: the records below change the job.
  EpochFailure failure;
  if (const EpochRuntime* runtime = state_->FindRuntime(id, job); runtime && runtime->failure) {
    failure = *runtime->failure;
    // A step in between shows that the job can run, so the delay starts again from 0.
    PacerOf(id).Failed(job.committed_step > job.status.resume_step, now);
  }
  // Before the records below: it uses the answers and placements of the epoch that ends.
  auto placements = JobPlacer(state_).Place(id, job);
  const auto state =
      NextState(job.status.state, placements ? JobEvent::kPlaced : JobEvent::kUnplaceable);
  TESSERA_CHECK(state.has_value());
  JobStatus next;
  next.state = *state;
  next.epoch = Epoch(job.status.epoch.value() + 1);
  next.resume_step = job.committed_step;
  // Nothing binds a job whose memory is gone, so it may begin again on any worker.
  next.bound = job.status.bound && !JobPlacer(state_).MemoryIsGone(id, job);
  if (next.bound) next.unconfirmed = JobPlacer(state_).UnconfirmedWorkers(id, job);
  next.placements = job.status.placements;
  if (placements.has_value()) {
    for (size_t rank = 0; rank < placements->size(); ++rank) {
      RankPlacement& place = (*placements)[rank];
      // Only an unbroken stay keeps `since`: memory from before a rank was elsewhere may belong to
      // a step that the others never completed.
      const bool stays = next.bound && place == job.status.placements[rank];
      place.since = stays ? job.status.placements[rank].since : next.epoch;
      if (next.bound && !stays) next.unconfirmed.insert(place.worker);
    }
    next.placements = *std::move(placements);
  }
  std::set<WorkerId> workers = WorkersOf(next.placements);
  for (auto it = next.unconfirmed.begin(); it != next.unconfirmed.end();)
    it = workers.count(*it) > 0 ? std::next(it) : next.unconfirmed.erase(it);
  next.reason = reason;
  next.failure_code = failure.code;
  // An executor's failure does not continue a completed job. A job that lost its memory before its
  // first step begins again, and holds devices.
  next.completed = job.status.completed && next.bound;
  next.completed_after = job.status.completed_after;
  if (failure.mismatch.has_value())
    effects->events.push_back(
        EventOf(EventKind::kOrderMismatch, id, job, failure.mismatch->message));
  effects->opened_epochs[id] = cause;
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  // The new epoch records an order of its own in its first step.
  state_->Put(EpochOverRecord{id}, effects);
  // After the status: the job does not run now, so BeginEpoch announces the next request.
  saves_->EndSaveTry(id, reason, now, effects);
  SendEpochOpened(id, job.status.placements, failure, effects);
}

void EpochProtocol::SendEpochOpened(const JobId& id, const std::vector<RankPlacement>& previous,
                                    const EpochFailure& failure, Effects* effects) const {
  const Job& job = *state_->FindJob(id);
  const std::set<WorkerId> workers = WorkersOf(job.status.placements);
  for (const WorkerId& worker : WorkersOf(previous)) {
    // Before PrepareEpoch: a worker in the next epoch ignores the mismatch of this one, and its
    // trainers would not get the cause.
    if (failure.mismatch.has_value()) effects->commands.push_back({worker, *failure.mismatch});
    // A worker that misses this lists the job in a heartbeat, and is told again.
    if (workers.count(worker) == 0)
      effects->commands.push_back({worker, DropJob{id, job.generation}});
  }
  const JobView view = ViewJob(*state_, id, job);
  std::set<WorkerId> told;
  for (const RankPlacement& placement : job.status.placements) {
    // The ranks of a waiting job may be placed on workers that are gone.
    if (!state_->members().IsLive(placement.worker, placement.incarnation)) continue;
    if (!told.insert(placement.worker).second) continue;
    effects->commands.push_back(
        {placement.worker,
         PrepareEpoch{view, job.status.reason, !job.status.bound,
                      state_->durable().deleted().Newest(id), job.status.failure_code}});
  }
  effects->changed_jobs.insert(id);
}

void EpochProtocol::BeginEpoch(const JobId& id, Effects* effects) {
  const Job& job = *state_->FindJob(id);
  EpochRuntime& runtime = state_->Runtime(id, job);
  JobStatus next = job.status;
  const auto state = NextState(next.state, JobEvent::kAllPrepared);
  TESSERA_CHECK(state.has_value());
  next.state = *state;
  // From now on workers may decide steps and fall silent before they report them (ADR 11).
  next.bound = true;
  next.resume_step = runtime.gather.ResumeStep(job.committed_step);
  // A decided step was voted for by all ranks and is never undone, so it counts as committed.
  runtime.ledger = StepLedger(job.spec->config.world_size, next.resume_step);
  if (job.IsFrozen() && !job.hand_over->frozen) {
    HandOver begun = *job.hand_over;
    begun.frozen = begun.step == next.resume_step;
    if (!begun.frozen) {  // The trainers decided another step before the job was frozen.
      begun.phase = *NextPhase(begun.phase, HandOverStep::kCancel);
      begun.reason = absl::StrCat("step ", next.resume_step.value(), " is decided");
    }
    state_->Put(HandOverRecord{id, std::move(begun)}, effects);
  }
  const std::set<WorkerId> workers = WorkersOf(next.placements);
  // Before the job runs: then only restarted workers count as empty.
  const std::set<WorkerId> empty =
      job.status.bound ? JobPlacer(state_).EmptyWorkers(id, job) : std::set<WorkerId>();
  next.unconfirmed = empty;
  for (size_t rank = 0; rank < next.placements.size(); ++rank) {
    if (empty.count(next.placements[rank].worker) > 0)
      next.rebuilt_ranks.insert(static_cast<int32_t>(rank));
  }
  // Ranks on one worker meet in its memory, which also has the decision.
  if (workers.size() > 1) {
    next.rank_addresses = runtime.gather.rank_addresses();
    next.decision = runtime.gather.decision();
  }
  const StartEpoch start{id,
                         job.generation,
                         next.epoch,
                         next.resume_step,
                         next.rank_addresses,
                         next.decision,
                         job.IsFrozen(),
                         next.rebuilt_ranks};
  state_->Put(JobStepRecord{id, next.resume_step}, effects);
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  // A worker that misses this gets it when it connects (WorkerReports::ResendJob).
  for (const WorkerId& worker : workers) effects->commands.push_back({worker, start});
  // After the record above, because only a running job is told of requests.
  saves_->SendRequest(id, workers, effects);
  effects->changed_jobs.insert(id);
}

void EpochProtocol::GiveUp(const JobId& id, const std::string& reason, absl::Time now,
                           Effects* effects) {
  const Job& job = *state_->FindJob(id);
  JobStatus next = job.status;
  const auto state = NextState(next.state, JobEvent::kShardsLost);
  TESSERA_CHECK(state.has_value());
  next.state = *state;
  next.completed = false;
  const std::string broken = state_->durable().WhyPlacementBroken(next);
  next.reason = absl::StrCat(reason, broken.empty() ? "" : absl::StrCat(" (", broken, ")"),
                             ": delete the job, and create it again from its last saved model");
  // The shards that are left are of no use without those that are gone.
  for (const WorkerId& worker : WorkersOf(next.placements)) {
    effects->commands.push_back({worker, DropJob{id, job.generation}});
  }
  saves_->EndPendingSaves(
      id,
      absl::FailedPreconditionError(absl::StrCat("job '", id.value(), "' is lost: ", next.reason)),
      now, effects);
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  state_->Put(EpochOverRecord{id}, effects);
  effects->changed_jobs.insert(id);
}

void EpochProtocol::FlushSteps(Effects* effects) {
  for (const auto& [id, runtime] : state_->runtimes()) {
    // A job that was just deleted keeps its runtime until Accept.
    if (state_->FindJob(id) != nullptr) FlushStep(id, effects);
  }
}

void EpochProtocol::FlushStep(const JobId& id, Effects* effects) {
  // Not with each step: a worker tells what it has decided when it prepares an epoch, so a step
  // that is not journalled yet cannot be lost with the coordinator.
  const Job& job = *state_->FindJob(id);
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  if (runtime == nullptr || runtime->ledger.committed_step() <= job.committed_step) return;
  state_->Put(JobStepRecord{id, runtime->ledger.committed_step()}, effects);
  effects->changed_jobs.insert(id);
}

void EpochProtocol::ForgetDeletedJobs() {
  for (auto it = pacers_.begin(); it != pacers_.end();) {
    it = state_->FindJob(it->first) == nullptr ? pacers_.erase(it) : std::next(it);
  }
  for (auto it = restarted_at_.begin(); it != restarted_at_.end();)
    it = state_->FindJob(it->first) == nullptr ? restarted_at_.erase(it) : std::next(it);
}

RestartPacer& EpochProtocol::PacerOf(const JobId& id) {
  return pacers_.try_emplace(id, state_->options.restart_delay).first->second;
}

void EpochProtocol::FailEpoch(const JobId& id, EpochFailure failure, absl::Time now,
                              Effects* effects) {
  EpochRuntime& runtime = state_->Runtime(id, *state_->FindJob(id));
  // Later failures are usually consequences of the first: its peers fail too.
  if (!runtime.failure.has_value()) runtime.failure = std::move(failure);
  Advance(id, now, effects);
}

bool EpochProtocol::RequireRestart(const JobId& id) {
  const Job& job = *state_->FindJob(id);
  const std::vector<RankPlacement>& placements = job.status.placements;
  const bool has_run_before =
      std::any_of(placements.begin(), placements.end(),
                  [&](const RankPlacement& place) { return place.since < job.status.epoch; });
  // Of an epoch that ended by an error of a program, or by orders that differed, the code says so.
  if (!has_run_before || job.status.failure_code != 0) return false;
  const Step committed = state_->Runtime(id, job).ledger.committed_step();
  const auto [last, is_first] = restarted_at_.emplace(id, committed);
  return is_first || std::exchange(last->second, committed) != committed;
}

void EpochProtocol::CheckPreparing(absl::Time now) {
  for (const auto& [id, job] : state_->jobs()) {
    if (job.status.state != JobState::kStarting) continue;
    EpochRuntime& runtime = state_->Runtime(id, job);
    // Not journalled, so that workers get the full time again after the coordinator restarts.
    if (!runtime.preparing_since.has_value()) runtime.preparing_since = now;
    if (runtime.gather.complete() || runtime.failure.has_value() ||
        now - *runtime.preparing_since < state_->options.prepare_timeout) {
      continue;
    }
    std::string reason;
    for (const WorkerId& worker : runtime.gather.missing()) {
      // An answer of this worker ends the avoidance earlier (WorkerReports::ReportPrepared).
      if (const Member* member = state_->members().Find(worker)) {
        state_->avoided[id].Add(worker, member->incarnation,
                                now + 10 * state_->options.prepare_timeout);
      }
      absl::StrAppend(&reason, reason.empty() ? "" : ", ", "worker '", worker.value(), "'");
    }
    absl::StrAppend(&reason, " did not prepare epoch ", job.status.epoch.value(), " within ",
                    absl::FormatDuration(state_->options.prepare_timeout));
    runtime.failure = EpochFailure{std::move(reason), std::nullopt, 0, EpochCause::kNotPrepared};
  }
}

}  // namespace tessera::coordinator
