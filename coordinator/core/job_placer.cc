#include "coordinator/core/job_placer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {

std::string DescribeWorkers(const JobStatus& status) {
  const std::set<WorkerId> workers = WorkersOf(status.placements);
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ",
                      absl::StrJoin(workers, ", ", [](std::string* out, const WorkerId& worker) {
                        absl::StrAppend(out, "'", worker.value(), "'");
                      }));
}

namespace {

std::string NameJobs(const std::vector<JobId>& jobs) {
  constexpr size_t kMostNamed = 5;
  if (jobs.empty()) return "";
  const size_t named = std::min(jobs.size(), kMostNamed);
  std::string text = absl::StrCat(jobs.size() == 1 ? "job " : "jobs ");
  for (size_t i = 0; i < named; ++i)
    absl::StrAppend(&text, i > 0 ? ", " : "", "'", jobs[i].value(), "'");
  if (named < jobs.size()) absl::StrAppend(&text, " and ", jobs.size() - named, " more");
  return text;
}

}  // namespace

PlacementRequest JobPlacer::RequestFor(const JobId& id, const Job& job) const {
  PlacementRequest request;
  request.world_size = job.spec->config.world_size;
  request.rule = state_.options.placement;
  request.ranks_per_worker = job.spec->config.shard_group_size;
  request.cpu_host_memory = job.spec->cpu_host_memory;
  request.gpu_host_memory = job.spec->gpu_host_memory;
  request.claimed = state_.durable().ClaimedByOthers(id);
  // An orphan will continue on its devices, so they are reserved for it.
  for (const auto& [key, holders] : state_.orphans.all()) {
    const HeldJob* held = key.first == id ? nullptr : Orphans::Latest(holders);
    // ClaimedByOthers has the devices of known jobs already.
    if (held == nullptr || state_.FindJob(key.first) != nullptr) continue;
    std::vector<DeviceId> places;
    for (const HeldJob::Place& place : held->places)
      places.emplace_back(place.worker, place.device);
    request.claimed.Add(*held->spec, places, state_.members());
  }
  if (const auto avoided = state_.avoided.find(id); avoided != state_.avoided.end()) {
    request.avoided = avoided->second.ids();
  }
  request.previous = job.status.placements;
  return request;
}

std::optional<std::vector<RankPlacement>> JobPlacer::Place(const JobId& id, const Job& job) const {
  const PlacementRequest request = RequestFor(id, job);
  if (!job.status.bound || MemoryIsGone(id, job)) {
    return AssignRanks(state_.members(), request);
  }
  const std::set<WorkerId> live = LiveWorkers(id, job), workers = WorkersOf(job.status.placements);
  // All shards are where they were, so the ranks stay.
  if (live.size() == workers.size()) return job.status.placements;
  if (live.empty() || !EachWorkerHasAll(*job.spec, job.status.placements)) return std::nullopt;
  // If all live workers may be empty, a silent one may hold the only copy: wait for it.
  const std::set<WorkerId> restarted = state_.durable().RestartedWorkers(job.status);
  const std::set<WorkerId> unconfirmed = UnconfirmedWorkers(id, job);
  const EpochRuntime* runtime = state_.FindRuntime(id, job);
  bool live_holds = false, silent_may_hold = false;
  for (const WorkerId& worker : workers) {
    // It said that it holds nothing before it fell silent, so it is not worth waiting for.
    const bool has_said_no = runtime != nullptr && job.status.state != JobState::kRunning &&
                             runtime->gather.empty_workers().count(worker) > 0;
    if (live.count(worker) > 0) {
      live_holds |= unconfirmed.count(worker) == 0;
    } else {
      silent_may_hold |= restarted.count(worker) == 0 && !has_said_no;
    }
  }
  if (silent_may_hold && !live_holds) return std::nullopt;
  return ReplaceGroups(state_.members(), request, live);
}

std::set<WorkerId> JobPlacer::LiveWorkers(const JobId& id, const Job& job) const {
  const auto avoided = state_.avoided.find(id);
  std::set<WorkerId> live;
  for (const RankPlacement& placement : job.status.placements) {
    if (avoided != state_.avoided.end() && avoided->second.ids().count(placement.worker) > 0)
      continue;
    if (state_.members().IsLive(placement.worker, placement.incarnation))
      live.insert(placement.worker);
  }
  return live;
}

std::set<WorkerId> JobPlacer::UnconfirmedWorkers(const JobId& id, const Job& job) const {
  std::set<WorkerId> unconfirmed = job.status.unconfirmed;
  const EpochRuntime* runtime = state_.FindRuntime(id, job);
  if (job.status.state == JobState::kRunning) {
    Step step = job.committed_step;
    if (runtime != nullptr) step = std::max(step, runtime->ledger.committed_step());
    // Every rank voted for this step, and an empty rank does not vote.
    return step > job.status.resume_step ? std::set<WorkerId>() : unconfirmed;
  }
  if (runtime == nullptr) return unconfirmed;
  // Answers about this epoch are newer than what the journal says.
  for (const WorkerId& worker : WorkersOf(job.status.placements)) {
    if (!runtime->gather.HasAnswered(worker)) continue;
    if (runtime->gather.empty_workers().count(worker) > 0) {
      unconfirmed.insert(worker);
    } else {
      unconfirmed.erase(worker);
    }
  }
  return unconfirmed;
}

std::set<WorkerId> JobPlacer::EmptyWorkers(const JobId& id, const Job& job) const {
  std::set<WorkerId> empty = state_.durable().RestartedWorkers(job.status);
  // Once the epoch runs, an empty worker may have received its shards. The next epoch asks again.
  if (job.status.state != JobState::kStarting) return empty;
  const EpochRuntime* runtime = state_.FindRuntime(id, job);
  if (runtime == nullptr || !runtime->gather.complete()) return empty;
  const std::set<WorkerId>& told = runtime->gather.empty_workers();
  // If all workers are empty and no step was committed, no epoch has reached them yet.
  const bool is_new =
      job.committed_step == Step(0) && told.size() == WorkersOf(job.status.placements).size();
  if (!is_new) empty.insert(told.begin(), told.end());
  return empty;
}

bool JobPlacer::MemoryIsGone(const JobId& id, const Job& job) const {
  const std::set<WorkerId> empty = EmptyWorkers(id, job);
  if (empty.empty()) return false;
  return !EachWorkerHasAll(*job.spec, job.status.placements) ||
         empty.size() == WorkersOf(job.status.placements).size();
}

std::string JobPlacer::WhoHasDevices(const JobId& id, const Job& job) const {
  std::set<DeviceId> devices;
  for (const RankPlacement& place : job.status.placements)
    devices.emplace(place.worker, place.device);
  return NameJobs(state_.durable().HoldersOfDevices(id, &devices));
}

std::string JobPlacer::WhyWaiting(const JobId& id, const Job& job) const {
  if (!job.status.bound) {
    const std::string holders = NameJobs(state_.durable().HoldersOfDevices(id, nullptr));
    return absl::StrCat(DescribeShortage(state_.members(), RequestFor(id, job)),
                        holders.empty() ? "" : absl::StrCat("; devices are held by ", holders));
  }
  const bool is_one = WorkersOf(job.status.placements).size() == 1;
  const std::string holders = absl::StrCat("needs ", DescribeWorkers(job.status), ", which ",
                                           is_one ? "holds" : "hold", " its shards");
  if (!EachWorkerHasAll(*job.spec, job.status.placements)) return holders;
  return absl::StrCat(holders, "; as long as one of them does, another worker with ",
                      job.spec->config.shard_group_size,
                      " free devices, whose ranks reach the others', can take another one's place");
}

}  // namespace tessera::coordinator
