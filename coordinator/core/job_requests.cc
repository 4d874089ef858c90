#include "coordinator/core/job_requests.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/job_placer.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/core/job_views.h"

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

// From where a job's generation would be else, in [0, 2^20). A journal that is put back and a clock
// that is set back come to the same numbers again, and a worker may still hold a job that had one.
int64_t DistanceOf(const std::string& request_id) {
  return static_cast<int64_t>(std::hash<std::string>()(request_id) % (1 << 20));
}

}  // namespace

absl::StatusOr<const Request*> JobRequests::FindReplay(const std::string& request_id,
                                                       RequestKind kind, const JobId& job) const {
  const Request* request = state_->durable().requests().Find(request_id);
  if (request == nullptr || (request->kind == kind && request->job == job)) return request;
  return absl::AlreadyExistsError(
      absl::StrCat("request id '", request_id, "' was used to ",
                   request->kind == RequestKind::kCreateJob ? "create" : "delete", " job '",
                   request->job.value(), "'"));
}

int64_t JobRequests::NextSequence(absl::Time now) const {
  return state_->durable().requests().NextSequence(absl::ToUnixNanos(now));
}

void JobRequests::RememberRequest(const std::string& request_id, Request request,
                                  Effects* effects) {
  for (std::string& old : state_->durable().requests().Surplus()) {
    state_->Put(RequestGoneRecord{std::move(old)}, effects);
  }
  state_->Put(RequestRecord{request_id, std::move(request)}, effects);
}

absl::StatusOr<JobView> JobRequests::CreateJob(const CreateJobEvent& event, absl::Time now,
                                               Effects* effects) {
  ASSIGN_OR_RETURN(const Request* replay,
                   FindReplay(event.request_id, RequestKind::kCreateJob, event.job));
  const Job* job = state_->FindJob(event.job);
  const absl::Status deleted_since = absl::NotFoundError(
      absl::StrCat("job '", event.job.value(), "' was created by this request and deleted since"));
  // The job that has the name now is another one, which somebody created after that.
  if (job != nullptr && replay != nullptr && job->generation.value() != replay->sequence)
    return deleted_since;
  if (job != nullptr) {
    // First, because the comparison's error tells what the other owner's job has.
    RETURN_IF_ERROR(CheckOwner(event, job->owner));
    RETURN_IF_ERROR(Annotate(CompareJobSpecs(*job->spec, *event.spec),
                             absl::StrCat("job '", event.job.value(), "' exists")));
    if (job->status.completed && !IsOver(job->status.state) && replay == nullptr) {
      // Every trainer calls CreateJob first, so this is where trainers come again (ADR 79). A late
      // retry of the first call is not a trainer that comes again.
      RETURN_IF_ERROR(Continue(event.job, *job, effects));
      job = state_->FindJob(event.job);
    }
    JobView view = ViewJob(*state_, event.job, *job);
    if (replay != nullptr) {
      // A retry gets the reply that was lost, even if the job has moved on since.
      view.status = replay->reply;
      view.committed_step = Step();
      view.ranks.clear();
    }
    return view;
  }
  RETURN_IF_ERROR(CheckKnown(event.job));
  if (state_->takes_over()) {
    return absl::UnavailableError(
        "the journal is new, or an older copy: the coordinator first takes over what the workers "
        "of its cluster hold");
  }
  // A late retry must not create again what was deleted since.
  if (replay != nullptr) return deleted_since;
  RETURN_IF_ERROR(owner_limits_.Create(state_->options, state_->jobs(), event, now));
  if (!event.by_operator)  // Operators' jobs are not counted.
    state_->OnRollback([this] { owner_limits_.TakeBackCreate(); });
  JobStatus status;
  status.reason = "the job was created";
  // Later than any deleted generation of this id, even if the clock has gone back.
  const int64_t sequence =
      std::max(NextSequence(now), state_->durable().deleted().Newest(event.job).value() + 1) +
      DistanceOf(event.request_id);
  state_->Put(
      JobSpecRecord{event.job, event.spec, Generation(sequence), event.owner, event.attach_key},
      effects);
  state_->Put(JobStatusRecord{event.job, status}, effects);
  effects->events.push_back(
      EventOf(EventKind::kJobCreated, event.job, *state_->FindJob(event.job),
              absl::StrCat("created with ", event.spec->config.world_size,
                           event.spec->config.world_size == 1 ? " rank" : " ranks")));
  // Before the reply is made, so that it shows the placement.
  epochs_->Advance(event.job, now, effects);
  JobView view = ViewJob(*state_, event.job, *state_->FindJob(event.job));
  RememberRequest(event.request_id, {RequestKind::kCreateJob, event.job, view.status, sequence},
                  effects);
  effects->changed_jobs.insert(event.job);
  return view;
}

absl::Status JobRequests::Continue(const JobId& id, const Job& job, Effects* effects) {
  const std::string holders = JobPlacer(state_).WhoHasDevices(id, job);
  if (!holders.empty()) {
    return absl::UnavailableError(absl::StrCat("job '", id.value(), "' was completed, and ",
                                               holders,
                                               " got its devices: wait until they are "
                                               "completed, or delete them"));
  }
  JobStatus next = job.status;
  next.completed = false;
  next.reason = "a trainer continues it";
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  effects->changed_jobs.insert(id);
  return absl::OkStatus();
}

absl::Status JobRequests::DeleteJob(const DeleteJobEvent& event, absl::Time now, Effects* effects) {
  ASSIGN_OR_RETURN(const Request* replay,
                   FindReplay(event.request_id, RequestKind::kDeleteJob, event.job));
  // A retry. A new job may have the id by now, and must not be deleted.
  if (replay != nullptr) return absl::OkStatus();
  const Job* job = state_->FindJob(event.job);
  if (job == nullptr) {
    if (const std::optional<JobView> orphan = orphans_->ViewOrphan(event.job))
      RETURN_IF_ERROR(CheckOwner(event, orphan->owner));
    return DeleteOrphan(event, now, effects);
  }
  RETURN_IF_ERROR(CheckOwner(event, job->owner));
  JobStatus last = job->status;
  last.state = *NextState(last.state, JobEvent::kDeleted);
  const std::set<WorkerId> workers = WorkersOf(last.placements);
  last.placements.clear();
  const DropJob drop{event.job, job->generation};  // Before the record that deletes `job`.
  effects->events.push_back(EventOf(EventKind::kJobDeleted, event.job, *job, "deleted"));
  state_->Put(JobGoneRecord{event.job}, effects);
  RememberDeleted(event.job, drop.generation, effects);
  RememberRequest(event.request_id,
                  {RequestKind::kDeleteJob, event.job, std::move(last), NextSequence(now)},
                  effects);
  // A disconnected worker learns of it when its heartbeat lists the job.
  for (const WorkerId& worker : workers) effects->commands.push_back({worker, drop});
  effects->changed_jobs.insert(event.job);
  // The job may have been the last one with ranks on a lost worker.
  members_->ForgetLostMembers(effects);
  epochs_->AdvanceAll(now, effects);  // Others may get its devices.
  return absl::OkStatus();
}

absl::Status JobRequests::CheckKnown(const JobId& id) const {
  const std::optional<JobView> orphan = orphans_->ViewOrphan(id);
  if (!orphan.has_value()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "job '", id.value(), "': ", orphan->status.reason,
      ": wait until it continues, or delete it together with what its workers hold of it"));
}

void JobRequests::RememberDeleted(const JobId& job, Generation generation, Effects* effects) {
  // This record also covers older generations. If a worker holds one that nobody deleted, skip it.
  const Generation deleted = state_->durable().deleted().Newest(job);
  for (const auto& [key, holders] : state_->orphans.all()) {
    if (key.first == job && key.second < generation && deleted < key.second) return;
  }
  for (const JobId& old : state_->durable().deleted().Surplus())
    state_->Put(DeletedJobGoneRecord{old}, effects);
  state_->Put(DeletedJobRecord{job, generation}, effects);
}

absl::Status JobRequests::DeleteOrphan(const DeleteJobEvent& event, absl::Time now,
                                       Effects* effects) {
  const std::optional<JobView> orphan = orphans_->ViewOrphan(event.job);
  if (!orphan.has_value()) return NoSuchJob(event.job);
  if (const Orphans::Holders* holders = state_->orphans.Find({event.job, orphan->generation})) {
    for (const auto& [worker, holder] : *holders)
      effects->commands.push_back({worker, DropJob{event.job, orphan->generation}});
    RememberDeleted(event.job, orphan->generation, effects);
  }
  // The orphan may also have rows in the journal that cannot be read.
  state_->Put(JobGoneRecord{event.job}, effects);
  effects->events.push_back(EventOf(EventKind::kJobDeleted, *orphan, "deleted"));
  JobStatus last = orphan->status;
  last.state = JobState::kDeleted;
  last.placements.clear();
  RememberRequest(event.request_id,
                  {RequestKind::kDeleteJob, event.job, std::move(last), NextSequence(now)},
                  effects);
  state_->ReplaceUnreadable(event.job);
  effects->changed_jobs.insert(event.job);
  return absl::OkStatus();
}

absl::StatusOr<JobView> JobRequests::GetJob(const JobId& job) const {
  const Job* found = state_->FindJob(job);
  if (found != nullptr) return ViewJob(*state_, job, *found);
  if (std::optional<JobView> orphan = orphans_->ViewOrphan(job)) return *std::move(orphan);
  return NoSuchJob(job);
}

std::vector<JobView> JobRequests::ListJobs(const JobId& after, size_t max_jobs) const {
  std::set<JobId> ids;
  for (const auto& [key, holders] : state_->orphans.all()) ids.insert(key.first);
  for (const auto& [id, reason] : state_->unreadable()) ids.insert(id);
  ids.erase(ids.begin(), ids.upper_bound(after));
  auto job = state_->jobs().upper_bound(after);
  for (size_t i = 0; i < max_jobs && job != state_->jobs().end(); ++i, ++job)
    ids.insert(job->first);
  std::vector<JobView> views;
  for (const JobId& id : ids) {
    if (views.size() == max_jobs) break;
    if (absl::StatusOr<JobView> view = GetJob(id); view.ok()) views.push_back(*std::move(view));
  }
  return views;
}

}  // namespace tessera::coordinator
