#include "coordinator/core/job_views.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/job_placer.h"

namespace tessera::coordinator {
namespace {

// Of a Job, or of a JobView.
template <typename AnyJob>
ClusterEvent MakeEvent(EventKind kind, const JobId& id, const AnyJob& job, std::string text) {
  ClusterEvent event;
  event.kind = kind;
  event.severity = SeverityOf(kind);
  event.job = id;
  event.generation = job.generation;
  event.epoch = job.status.epoch;
  event.committed_step = job.committed_step;
  event.text = std::move(text);
  event.owner = job.owner;
  return event;
}

}  // namespace

std::string StateReason(const CoordinatorState& state, const JobId& id, const Job& job) {
  // First, because the job stands still until its workers' epoch is taken over.
  if (state.IsBehind(id, job)) {
    return absl::StrCat("the journal has an older epoch of it than its workers: ",
                        Orphans::DescribeHolders(state.BelievedHolders({id, job.generation})));
  }
  if (job.status.state == JobState::kWaiting) {
    return absl::StrCat(job.status.reason, "; ", JobPlacer(&state).WhyWaiting(id, job));
  }
  if (job.status.state == JobState::kRunning && job.IsFrozen())
    return DescribeHandOver(*job.hand_over);
  const EpochRuntime* runtime = state.FindRuntime(id, job);
  if (job.status.state == JobState::kRunning && runtime != nullptr) {
    if (!runtime->missing.empty()) return runtime->missing.begin()->second;
    if (!runtime->slow.empty()) return runtime->slow.begin()->second;
  }
  if (job.status.state != JobState::kStarting) return job.status.reason;
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

JobView ViewJob(const CoordinatorState& state, const JobId& id, const Job& job) {
  JobView view{id, job.generation, job.spec,  job.status,     job.committed_step,
               {}, job.hand_over,  job.owner, job.attach_key, job.spec_bytes};
  view.status.reason = StateReason(state, id, job);
  // From an earlier epoch, for ranks that have not reported in this one.
  if (const auto runtime = state.runtimes().find(id); runtime != state.runtimes().end())
    view.ranks = runtime->second.last_seen;
  if (const EpochRuntime* runtime = state.FindRuntime(id, job); runtime != nullptr) {
    for (const auto& [rank, text] : runtime->missing) view.missing_ranks.push_back(rank);
    for (const auto& [rank, text] : runtime->slow) view.slow_ranks.push_back(rank);
  }
  return view;
}

ClusterEvent EventOf(EventKind kind, const JobId& id, const Job& job, std::string text) {
  return MakeEvent(kind, id, job, std::move(text));
}

ClusterEvent EventOf(EventKind kind, const JobView& job, std::string text) {
  return MakeEvent(kind, job.id, job, std::move(text));
}

absl::Status NoSuchJob(const JobId& job) {
  return absl::NotFoundError(absl::StrCat("no job '", job.value(), "'"));
}

}  // namespace tessera::coordinator
