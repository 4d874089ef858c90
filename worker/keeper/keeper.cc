#include "worker/keeper/keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "shm/local_messages.h"

namespace tessera {

std::vector<std::shared_ptr<HostedJob>> Keeper::Jobs() const {
  std::vector<std::shared_ptr<HostedJob>> jobs;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  return jobs;
}

std::shared_ptr<HostedJob> Keeper::Find(const std::string& job_id) const {
  absl::MutexLock lock(&mu_);
  const auto it = jobs_.find(job_id);
  return it == jobs_.end() ? nullptr : it->second;
}

absl::StatusOr<std::shared_ptr<HostedJob>> Keeper::FindForPut(const std::string& job_id,
                                                              int64_t generation) const {
  std::shared_ptr<HostedJob> job = Find(job_id, generation);
  if (job != nullptr) return job;
  return absl::UnavailableError(
      absl::StrCat("worker '", worker_id_, "' does not hold job '", job_id, "'"));
}

std::shared_ptr<HostedJob> Keeper::Find(const std::string& job_id, int64_t generation) const {
  // Commands name a generation: one of a deleted job must not touch its successor.
  std::shared_ptr<HostedJob> job = Find(job_id);
  return job != nullptr && job->generation() == generation ? job : nullptr;
}

void Keeper::HandleCommand(const v1::CoordinatorCommand& command) {
  std::shared_ptr<HostedJob> job;
  switch (command.command_case()) {
    case v1::CoordinatorCommand::kPrepare:
      return Prepare(command.prepare());
    case v1::CoordinatorCommand::kStart:
      return Start(command.start());
    case v1::CoordinatorCommand::kRelease:
      job = Find(command.release().job_id(), command.release().generation());
      if (job != nullptr) job->Release(command.release());
      return;
    case v1::CoordinatorCommand::kMismatch:
      job = Find(command.mismatch().job_id(), command.mismatch().generation());
      if (job != nullptr) job->Mismatch(command.mismatch());
      return;
    case v1::CoordinatorCommand::kDrop:
      return Drop(command.drop().job_id(), command.drop().generation());
    case v1::CoordinatorCommand::kDescribe:
      return Describe(command.describe());
    case v1::CoordinatorCommand::kRequestedSave:
      job = Find(command.requested_save().job_id(), command.requested_save().generation());
      if (job != nullptr) job->WantSave(command.requested_save());
      return;
    case v1::CoordinatorCommand::kServeState:  // A StateRelay's.
    case v1::CoordinatorCommand::kStagePut:    // A PutRelay's.
    case v1::CoordinatorCommand::COMMAND_NOT_SET:
      return;
  }
}

void Keeper::Drop(const std::string& job_id, int64_t generation) {
  // Its destructor waits for executors, so it runs after the lock is released.
  std::shared_ptr<HostedJob> job;  // Destroyed outside the lock.
  absl::MutexLock lock(&mu_);
  const auto it = jobs_.find(job_id);
  if (it == jobs_.end() || it->second->generation() != generation) return;
  TESSERA_LOG(INFO, "job {}, generation {}: dropped, and its memory with it", job_id,
              it->second->generation());
  job = std::move(it->second);
  jobs_.erase(it);
  job->MarkDropped();
}

void Keeper::TakeOver(JobVault::HeldJob held) {
  const std::string job_id = held.job.job_id(), owner = held.owner;
  absl::StatusOr<std::shared_ptr<HostedJob>> job;
  const absl::StatusOr<LocalRanks> local = LocalRanksOf(held.job, worker_id_);
  if (local.ok()) {
    job =
        HostedJob::Restore(std::move(held), *local, data_host_, launcher_, emit_, budget_, vault_);
  } else {
    job = local.status();
  }
  if (!job.ok()) {
    TESSERA_LOG(ERROR, "job {}: cannot be taken over: {}", job_id, job.status().ToString());
    // Kept, it would be tried and refused again by each daemon that follows.
    return vault_->Drop(owner);
  }
  TESSERA_LOG(INFO, "job {}: taken over from the previous daemon", job_id);
  absl::MutexLock lock(&mu_);
  std::shared_ptr<HostedJob>& kept = jobs_[job_id];
  const auto age = [](const HostedJob& held) {
    // The vault may hold older memory of the same job: see JobVault::PutJob.
    return std::pair(held.generation(), held.epoch().value());
  };
  // The younger one stays.
  if (kept == nullptr || age(*kept) < age(**job)) kept.swap(*job);
  if (*job != nullptr) (*job)->MarkDropped();  // An older memory of the same job.
}

void Keeper::Describe(const v1::DescribeJob& describe) const {
  const std::shared_ptr<HostedJob> job = Find(describe.job_id(), describe.generation());
  if (job == nullptr) return;  // The next heartbeat says so.
  v1::WorkerEvent event;
  *event.mutable_held() = job->Describe();
  emit_(event);
}

absl::Status Keeper::MakeRoom(const v1::PrepareEpoch& prepare) {
  const std::string& job_id = prepare.job().job_id();
  const std::shared_ptr<HostedJob> held = Find(job_id);
  if (held == nullptr || held->generation() == prepare.job().generation()) return absl::OkStatus();
  // The coordinator may have lost its journal: memory with committed steps is never given up to one
  // that does not know of it.
  const bool is_later = held->generation() > prepare.job().generation();
  // Memory in which no epoch has begun has nothing to lose.
  if (is_later || (held->has_begun() && held->generation() > prepare.deleted_generation())) {
    return absl::FailedPreconditionError(
        absl::StrCat("it holds job '", job_id, "' of generation ", held->generation(),
                     ", which its coordinator neither knows nor has deleted: delete job '", job_id,
                     is_later ? "' once, and that one continues"
                              : "' until none is listed, then create it again"));
  }
  Drop(job_id, held->generation());
  return absl::OkStatus();
}

void Keeper::Start(const v1::StartEpoch& start) {
  const std::shared_ptr<HostedJob> job = Find(start.job_id(), start.generation());
  if (job != nullptr) return job->Start(start);
  // The coordinator relies on state that is not here: it must prepare the job again.
  ReportFailure(start.job_id(), start.generation(), start.epoch(), "does not hold the job");
}

namespace {

// Whether the worker's state of the job is useless in the epoch: the job lost its shards elsewhere,
// or its ranks have been on another worker since.
bool IsVoid(const v1::PrepareEpoch& prepare, const HostedJob& job, int first_rank) {
  Epoch since;
  for (const v1::RankPlacement& placement : prepare.job().placements()) {
    // The rank was placed elsewhere after this memory's last epoch, so its values are old.
    if (placement.rank() == first_rank) since = Epoch(placement.since_epoch());
  }
  return job.has_begun() && (prepare.discards_state() || job.epoch() < since);
}

}  // namespace

void Keeper::Prepare(const v1::PrepareEpoch& prepare) {
  const std::string& job_id = prepare.job().job_id();
  const int64_t generation = prepare.job().generation();
  // Outside the lock: making and dropping jobs takes long.
  absl::Status status = MakeRoom(prepare);
  std::shared_ptr<HostedJob> job = Find(job_id, generation);
  // From a coordinator that lags: an old one voids nothing.
  if (job != nullptr && Epoch(prepare.job().epoch()) < job->epoch()) return;
  absl::StatusOr<LocalRanks> local = LocalRanksOf(prepare.job(), worker_id_);
  status.Update(local.status());
  // A repeat voids nothing, either: if its epoch has started here, the coordinator lags.
  const bool is_new = job != nullptr && job->epoch() < Epoch(prepare.job().epoch());
  const bool is_void =
      status.ok() && is_new && (IsVoid(prepare, *job, local->first()) || !(job->local() == *local));
  if (is_void) {
    // Dropped before it is made again, so that both need not fit into memory.
    job.reset();
    Drop(job_id, generation);
  }
  if (status.ok() && job == nullptr) {
    // Without the lock: commands come from one thread, so nobody else makes this job meanwhile.
    auto created = HostedJob::Create(prepare.job(), *local, data_host_, launcher_, emit_,
                                     device_memory_, HostedJob::kAnswerTimeout, budget_, vault_);
    status = created.status();
    if (status.ok()) {
      job = *std::move(created);
      absl::MutexLock lock(&mu_);
      // Found by trainers from here on: they are told to try again until its epoch runs.
      jobs_[job_id] = job;
    }
  }
  if (status.ok()) return job->Prepare(prepare);
  ReportFailure(job_id, generation, prepare.job().epoch(),
                absl::StrCat("cannot hold the job: ", status.message()));
}

void Keeper::ReportFailure(const std::string& job_id, int64_t generation, int64_t epoch,
                           const std::string& reason) const {
  TESSERA_LOG(ERROR, "job {}: {}", job_id, reason);
  v1::WorkerEvent event;
  event.mutable_failure()->set_job_id(job_id);
  event.mutable_failure()->set_generation(generation);
  event.mutable_failure()->set_epoch(epoch);
  // Of no rank: the worker as a whole cannot take part.
  event.mutable_failure()->set_rank(-1);
  event.mutable_failure()->set_reason(PrintableUtf8(reason));
  emit_(event);
}

v1::Heartbeat Keeper::Progress() const {
  std::vector<std::shared_ptr<HostedJob>> jobs;
  // Copies of the pointers: the lock is not held while jobs take theirs.
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, job] : jobs_) jobs.push_back(job);
  }
  v1::Heartbeat heartbeat;
  for (const auto& job : jobs) *heartbeat.add_jobs() = job->Progress();
  return heartbeat;
}

std::vector<v1::WorkerEvent> Keeper::OnConnected() const {
  // The heartbeat first: it says which jobs there are before any of them reports.
  std::vector<v1::WorkerEvent> events(1);
  *events[0].mutable_heartbeat() = Progress();
  std::vector<std::shared_ptr<HostedJob>> jobs;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, job] : jobs_) jobs.push_back(job);
  }
  for (const auto& job : jobs) {
    for (v1::WorkerEvent& event : job->Unacknowledged()) events.push_back(std::move(event));
  }
  return events;
}

absl::StatusOr<AttachedTrainer> Keeper::Attach(const v1::AttachRequest& request,
                                               const PacketPeer& peer) {
  // Whatever its generation, so that a trainer of another one is told which of the two is older.
  const std::shared_ptr<HostedJob> job = Find(request.job_id());
  if (job == nullptr) {
    // The trainer may be faster than the coordinator's prepare.
    return WithRetry(absl::NotFoundError(absl::StrCat("worker '", worker_id_, "' has no job '",
                                                      request.job_id(), "'")),
                     v1::RETRY_SOON);
  }
  if (job->generation() < request.generation()) {
    return WithRetry(absl::FailedPreconditionError(
                         absl::StrCat("worker '", worker_id_, "' holds a job '", request.job_id(),
                                      "' that was deleted and created again since: try again")),
                     v1::RETRY_SOON);
  }
  if (job->generation() > request.generation()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", request.job_id(),
                     "' was deleted and created again since the trainer asked for it"));
  }
  AttachedTrainer trainer;
  ASSIGN_OR_RETURN(trainer.given, job->Attach(request, peer, SteadyNow()));
  trainer.job_id = request.job_id();
  trainer.generation = job->generation();
  trainer.rank = Rank(trainer.given.response.rank());
  trainer.attachment = Incarnation(trainer.given.response.attachment());
  trainer.hosts_executor = request.hosts_executor();
  return trainer;
}

void Keeper::Detach(const AttachedTrainer& trainer, Leaving how) {
  // The job may be gone, or be a newer one: then there is nothing to detach from.
  const std::shared_ptr<HostedJob> job = Find(trainer.job_id, trainer.generation);
  if (job != nullptr) job->Detach(trainer.rank, trainer.attachment, how);
}

void Keeper::Report(const AttachedTrainer& trainer, const v1::Report& report) {
  const std::shared_ptr<HostedJob> job = Find(trainer.job_id, trainer.generation);
  if (job != nullptr) job->Report(trainer.rank, trainer.attachment, report);
}

absl::StatusOr<std::unique_ptr<StateSnapshot>> Keeper::SnapshotState(
    const std::string& job_id, int64_t generation, const StateSnapshot::Request& request) const {
  const std::shared_ptr<HostedJob> job = Find(job_id, generation);
  if (job == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("worker '", worker_id_, "' does not hold job '", job_id, "'"));
  }
  return StateSnapshot::Create(job->regions(), request);
}

absl::StatusOr<std::unique_ptr<FrozenState>> Keeper::FrozenStateOf(const std::string& job_id,
                                                                   int64_t generation,
                                                                   int64_t step) const {
  const std::shared_ptr<HostedJob> job = Find(job_id, generation);
  if (job == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("worker '", worker_id_, "' does not hold job '", job_id, "'"));
  }
  return FrozenState::Create(job->regions(), step);
}

void Keeper::Shutdown() {
  std::map<std::string, std::shared_ptr<HostedJob>> jobs;
  {
    absl::MutexLock lock(&mu_);
    // Their destructors wait for executors, without the lock.
    jobs.swap(jobs_);
  }
  jobs.clear();
}

}  // namespace tessera
