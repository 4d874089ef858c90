#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {
namespace {

// Errors: PermissionDenied  the sender of the event does not own the job
template <typename Event>
absl::Status CheckOwner(const Event& event, const std::string& owner) {
  if (event.by_operator || event.owner == owner) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("job '", event.job.value(), "' is not of '", event.owner, "': its owner is ",
                   owner.empty() ? "not known" : absl::StrCat("'", owner, "'")));
}

absl::Status NoSuchJob(const JobId& job) {
  return absl::NotFoundError(absl::StrCat("no job '", job.value(), "'"));
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options),
      state_(options.request_capacity),
      liveness_(options.worker_timeout),
      orphans_(options.max_jobs) {}

absl::StatusOr<Coordinator> Coordinator::Restore(const CoordinatorOptions& options,
                                                 const std::vector<StateRecord>& records,
                                                 absl::Time now) {
  Coordinator coordinator(options);
  for (const StateRecord& record : records) coordinator.state_.Apply(record);
  RETURN_IF_ERROR(coordinator.state_.CheckConsistent());
  for (const auto& [worker, member] : coordinator.state_.members().members()) {
    coordinator.liveness_.Heard(worker, now);
  }
  // After all other records, because only the orders of each job's last epoch count.
  for (const StateRecord& record : records) {
    const auto* order = std::get_if<OrderRecord>(&record);
    const Job* job = order == nullptr ? nullptr : coordinator.state_.FindJob(order->job);
    if (job == nullptr || job->status.epoch != order->epoch) continue;
    coordinator.Runtime(order->job, *job).order.Restore(order->position, order->entry);
  }
  for (auto& [id, runtime] : coordinator.runtimes_) runtime.order.FinishRestore();
  return coordinator;
}

void Coordinator::Accept() {
  heard_saves_.erase(heard_saves_.begin(), heard_saves_.begin() + noted_saves_);
  noted_saves_ = 0;
  if (undos_.empty()) return;
  undos_.clear();
  for (const JobId& job : replaced_) unreadable_.erase(job);
  replaced_.clear();
  for (auto it = runtimes_.begin(); it != runtimes_.end();) {
    it = state_.FindJob(it->first) == nullptr ? runtimes_.erase(it) : std::next(it);
  }
  for (auto it = pacers_.begin(); it != pacers_.end();) {
    it = state_.FindJob(it->first) == nullptr ? pacers_.erase(it) : std::next(it);
  }
  for (auto it = avoided_.begin(); it != avoided_.end();) {
    it = state_.FindJob(it->first) == nullptr ? avoided_.erase(it) : std::next(it);
  }
}

void Coordinator::Rollback() {
  noted_saves_ = 0;
  replaced_.clear();
  for (; !undos_.empty(); undos_.pop_back()) undos_.back()(&state_);
}

void Coordinator::NameCluster(const std::string& id, Effects* effects) {
  Put(ClusterRecord{id, state_.cluster().first_save_number}, effects);
}

void Coordinator::TakeOverHeld(absl::Time until, int64_t first_save_number, Effects* effects) {
  take_over_until_ = until;
  first_save_number = std::max(first_save_number, state_.cluster().first_save_number);
  Put(ClusterRecord{state_.cluster().id, first_save_number}, effects);
}

void Coordinator::Put(StateRecord record, Effects* effects) {
  undos_.push_back(state_.UndoOf(record));  // Before Apply: it keeps what the record replaces.
  state_.Apply(record);
  effects->records.push_back(std::move(record));
}

const EpochRuntime* Coordinator::FindRuntime(const JobId& id, const Job& job) const {
  auto it = runtimes_.find(id);
  return it == runtimes_.end() || it->second.epoch != job.status.epoch ? nullptr : &it->second;
}

EpochRuntime& Coordinator::Runtime(const JobId& id, const Job& job) {
  if (FindRuntime(id, job) == nullptr) {
    EpochRuntime runtime(job.status.epoch, job.status.placements, job.spec, job.committed_step);
    EpochRuntime& last = runtimes_[id];
    if (last.epoch < runtime.epoch) runtime.last_seen = std::move(last.last_seen);
    last = std::move(runtime);
  }
  return runtimes_[id];
}

absl::StatusOr<const Request*> Coordinator::FindReplay(const std::string& request_id,
                                                       RequestKind kind, const JobId& job) const {
  const Request* request = state_.requests().Find(request_id);
  if (request == nullptr || (request->kind == kind && request->job == job)) return request;
  return absl::AlreadyExistsError(
      absl::StrCat("request id '", request_id, "' was used to ",
                   request->kind == RequestKind::kCreateJob ? "create" : "delete", " job '",
                   request->job.value(), "'"));
}

int64_t Coordinator::NextSequence(absl::Time now) const {
  return state_.requests().NextSequence(absl::ToUnixNanos(now));
}

void Coordinator::RememberRequest(const std::string& request_id, Request request,
                                  Effects* effects) {
  for (std::string& old : state_.requests().Surplus()) {
    Put(RequestGoneRecord{std::move(old)}, effects);
  }
  Put(RequestRecord{request_id, std::move(request)}, effects);
}

absl::StatusOr<JobView> Coordinator::CreateJob(const CreateJobEvent& event, absl::Time now,
                                               Effects* effects) {
  ASSIGN_OR_RETURN(const Request* replay,
                   FindReplay(event.request_id, RequestKind::kCreateJob, event.job));
  const Job* job = state_.FindJob(event.job);
  if (job != nullptr) {
    RETURN_IF_ERROR(CheckOwner(event, job->owner));
    RETURN_IF_ERROR(Annotate(CompareJobSpecs(*job->spec, *event.spec),
                             absl::StrCat("job '", event.job.value(), "' exists")));
    JobView view = View(event.job, *job);
    if (replay != nullptr) {
      view.status = replay->reply;
      view.committed_step = Step();
      view.ranks.clear();
    }
    return view;
  }
  RETURN_IF_ERROR(CheckKnown(event.job));
  if (take_over_until_.has_value()) {
    return absl::UnavailableError(
        "the journal is new, or an older copy: the coordinator first takes over what the workers "
        "of its cluster hold");
  }
  if (replay != nullptr) {
    return absl::NotFoundError(absl::StrCat("job '", event.job.value(),
                                            "' was created by this request and deleted since"));
  }
  RETURN_IF_ERROR(owner_limits_.Create(options_, state_.jobs(), event, now));
  if (!event.by_operator)  // Operators' jobs are not counted.
    undos_.push_back([this](DurableState*) { owner_limits_.TakeBackCreate(); });
  JobStatus status;
  status.reason = "the job was created";
  // Later than any deleted generation of this id, even if the clock has gone back.
  const int64_t sequence =
      std::max(NextSequence(now), state_.deleted().Newest(event.job).value() + 1);
  Put(JobSpecRecord{event.job, event.spec, Creation(sequence), event.owner, event.attach_key},
      effects);
  Put(JobStatusRecord{event.job, status}, effects);
  Advance(event.job, now, effects);
  JobView view = View(event.job, *state_.FindJob(event.job));
  RememberRequest(event.request_id, {RequestKind::kCreateJob, event.job, view.status, sequence},
                  effects);
  effects->changed_jobs.insert(event.job);
  return view;
}

absl::Status Coordinator::DeleteJob(const DeleteJobEvent& event, absl::Time now, Effects* effects) {
  ASSIGN_OR_RETURN(const Request* replay,
                   FindReplay(event.request_id, RequestKind::kDeleteJob, event.job));
  if (replay != nullptr) return absl::OkStatus();
  const Job* job = state_.FindJob(event.job);
  if (job == nullptr) {
    if (const std::optional<JobView> orphan = ViewOrphan(event.job))
      RETURN_IF_ERROR(CheckOwner(event, orphan->owner));
    return DeleteOrphan(event, now, effects);
  }
  RETURN_IF_ERROR(CheckOwner(event, job->owner));
  JobStatus last = job->status;
  last.state = *NextState(last.state, JobEvent::kDeleted);
  const std::set<WorkerId> workers = WorkersOf(last.placements);
  last.placements.clear();
  const DropJob drop{event.job, job->creation};  // Before the record that deletes `job`.
  Put(JobGoneRecord{event.job}, effects);
  RememberDeleted(event.job, drop.creation, effects);
  RememberRequest(event.request_id,
                  {RequestKind::kDeleteJob, event.job, std::move(last), NextSequence(now)},
                  effects);
  // A disconnected worker learns of it when its heartbeat lists the job.
  for (const WorkerId& worker : workers) effects->commands.push_back({worker, drop});
  effects->changed_jobs.insert(event.job);
  ForgetLostMembers(effects);
  AdvanceAll(now, effects);  // Others may get its devices.
  return absl::OkStatus();
}

std::string Coordinator::StateReason(const JobId& id, const Job& job) const {
  if (IsBehind(id, job)) {
    return absl::StrCat("the journal has an older epoch of it than its workers: ",
                        Orphans::DescribeHolders(*orphans_.Find({id, job.creation})));
  }
  if (job.status.state == JobState::kWaiting) {
    return absl::StrCat(job.status.reason, "; ", Placer().WhyWaiting(id, job));
  }
  if (job.status.state == JobState::kRunning && job.IsFrozen())
    return DescribeHandOver(*job.hand_over);
  if (job.status.state != JobState::kStarting) return job.status.reason;
  const EpochRuntime* runtime = FindRuntime(id, job);
  if (runtime != nullptr && runtime->failure.has_value()) {
    return absl::StrCat(runtime->failure->reason, "; will be tried again");
  }
  const std::set<WorkerId> missing =
      runtime != nullptr ? runtime->gather.missing() : WorkersOf(job.status.placements);
  return absl::StrCat(
      job.status.reason, "; preparing epoch ", job.status.epoch.value(), ", not yet prepared: ",
      missing.empty() ? std::string("none")
                      : absl::StrJoin(missing, ", ", [](std::string* out, const WorkerId& worker) {
                          absl::StrAppend(out, "'", worker.value(), "'");
                        }));
}

JobView Coordinator::View(const JobId& id, const Job& job) const {
  JobView view{id, job.creation,  job.spec,  job.status,     job.committed_step,
               {}, job.hand_over, job.owner, job.attach_key, job.spec_bytes};
  view.status.reason = StateReason(id, job);
  // From an earlier epoch, for ranks that have not reported in this one.
  if (const auto runtime = runtimes_.find(id); runtime != runtimes_.end())
    view.ranks = runtime->second.last_seen;
  return view;
}

absl::StatusOr<JobView> Coordinator::GetJob(const JobId& job) const {
  const Job* found = state_.FindJob(job);
  if (found != nullptr) return View(job, *found);
  if (std::optional<JobView> orphan = ViewOrphan(job)) return *std::move(orphan);
  return NoSuchJob(job);
}

std::vector<JobView> Coordinator::ListJobs(const JobId& after, size_t max_jobs) const {
  std::set<JobId> ids;
  for (const auto& [key, holders] : orphans_.all()) ids.insert(key.first);
  for (const auto& [id, reason] : unreadable_) ids.insert(id);
  ids.erase(ids.begin(), ids.upper_bound(after));
  auto job = state_.jobs().upper_bound(after);
  for (size_t i = 0; i < max_jobs && job != state_.jobs().end(); ++i, ++job) ids.insert(job->first);
  std::vector<JobView> views;
  for (const JobId& id : ids) {
    if (views.size() == max_jobs) break;
    if (absl::StatusOr<JobView> view = GetJob(id); view.ok()) views.push_back(*std::move(view));
  }
  return views;
}

}  // namespace tessera::coordinator
