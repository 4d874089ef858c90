#include "coordinator/core/durable_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// The job's save log, to be changed: copied first if other jobs share it.
SaveLog& OwnSaves(Job* job) {
  if (job->save_log == nullptr) {
    job->save_log = std::make_shared<SaveLog>();
  } else if (job->save_log.use_count() > 1) {
    job->save_log = std::make_shared<SaveLog>(*job->save_log);
  }
  return *job->save_log;
}

}  // namespace

const SaveLog& Job::saves() const {
  static const SaveLog* const kNone = new SaveLog();
  return save_log == nullptr ? *kNone : *save_log;
}

DeletedJobs& DurableState::OwnDeleted() {
  if (deleted_.use_count() > 1) deleted_ = std::make_shared<DeletedJobs>(*deleted_);
  return *deleted_;
}

void DurableState::Apply(const StateRecord& record) {
  std::visit(Overloaded{
                 [&](const JobSpecRecord& r) {
                   Job& job = jobs_[r.job];
                   job.spec = r.spec;
                   job.spec_bytes = SizeBytes(*r.spec);
                   job.generation = r.generation;
                   job.owner = r.owner;
                   job.attach_key = r.attach_key;
                 },
                 [&](const JobStatusRecord& r) { jobs_[r.job].status = r.status; },
                 [&](const JobStepRecord& r) {
                   Job& job = jobs_[r.job];
                   // Never back: all ranks voted for a committed step, and none undoes it.
                   job.committed_step = std::max(job.committed_step, r.committed_step);
                 },
                 [&](const HandOverRecord& r) { jobs_[r.job].hand_over = r.hand_over; },
                 [&](const JobGoneRecord& r) { jobs_.erase(r.job); },
                 [&](const DeletedJobRecord& r) { OwnDeleted().Put(r.job, r.generation); },
                 [&](const DeletedJobGoneRecord& r) { OwnDeleted().Forget(r.job); },
                 [&](const ClusterRecord& r) { cluster_ = r; },
                 [&](const MemberRecord& r) { members_.Put(r.worker, r.member); },
                 [&](const MemberGoneRecord& r) { members_.Forget(r.worker); },
                 [&](const RequestRecord& r) { requests_.Put(r.request_id, r.request); },
                 [&](const RequestGoneRecord& r) { requests_.Forget(r.request_id); },
                 [](const OrderRecord&) {},       // Kept by the epoch's OrderValidator.
                 [&](const EpochOverRecord&) {},  // The order belongs to the epoch's validator.
                 [&](const SaveRecord& r) { OwnSaves(&jobs_[r.job]).Put(r.save); },
                 [&](const SaveGoneRecord& r) { OwnSaves(&jobs_[r.job]).Forget(r.number); },
             },
             record);
}

DurableState::Undo DurableState::UndoOfJob(const JobId& id) const {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return [id](DurableState* state) { state->jobs_.erase(id); };
  // Cheap, because copies of a job share its spec and its save log.
  return [id, before = job->second](DurableState* state) { state->jobs_[id] = before; };
}

DurableState::Undo DurableState::UndoOfMember(const WorkerId& id) const {
  const Member* member = members_.Find(id);
  if (member == nullptr) return [id](DurableState* state) { state->members_.Forget(id); };
  return [id, before = *member](DurableState* state) { state->members_.Put(id, before); };
}

DurableState::Undo DurableState::UndoOfRequest(const std::string& id) const {
  const Request* request = requests_.Find(id);
  if (request == nullptr) return [id](DurableState* state) { state->requests_.Forget(id); };
  return [id, before = *request](DurableState* state) { state->requests_.Put(id, before); };
}

DurableState::Undo DurableState::UndoOf(const StateRecord& record) const {
  const auto of_deleted = [this]() -> Undo {
    // Cheap, because the set is shared until it changes.
    return [before = deleted_](DurableState* state) { state->deleted_ = before; };
  };
  return std::visit(Overloaded{
                        [&](const DeletedJobRecord&) { return of_deleted(); },
                        [&](const DeletedJobGoneRecord&) { return of_deleted(); },
                        [&](const ClusterRecord&) -> Undo {
                          return [before = cluster_](DurableState* state) {
                            state->cluster_ = before;
                          };
                        },
                        [&](const MemberRecord& r) { return UndoOfMember(r.worker); },
                        [&](const MemberGoneRecord& r) { return UndoOfMember(r.worker); },
                        [&](const RequestRecord& r) { return UndoOfRequest(r.request_id); },
                        [&](const RequestGoneRecord& r) { return UndoOfRequest(r.request_id); },
                        // Apply does nothing with these, so there is nothing to undo.
                        [](const OrderRecord&) -> Undo { return [](DurableState*) {}; },
                        [](const EpochOverRecord&) -> Undo { return [](DurableState*) {}; },
                        [&](const auto& r) { return UndoOfJob(r.job); },
                    },
                    record);
}

int64_t DurableState::MaxFreeDevices() const {
  int64_t free = 0;
  for (const auto& [worker, member] : members_.members()) {
    if (!member.lost) free += member.num_devices;
  }
  std::set<DeviceId> held;  // Two jobs may be on one: one that was completed, and is no longer.
  for (const auto& [id, job] : jobs_) {
    if (job.status.FreesDevices()) continue;
    for (const RankPlacement& placement : job.status.placements) {
      const Member* member = members_.Find(placement.worker);
      // Devices of lost workers were not counted above.
      if (member != nullptr && !member->lost && placement.device < member->num_devices)
        held.emplace(placement.worker, placement.device);
    }
  }
  return free - static_cast<int64_t>(held.size());
}

absl::Status DurableState::CheckConsistent() const {
  for (const auto& [id, job] : jobs_) {
    // Every record of a job creates it, so only now does a missing spec show.
    if (job.spec == nullptr) {
      return absl::DataLossError(absl::StrCat("job '", id.value(), "' has no spec"));
    }
    const size_t num_placements = job.status.placements.size();
    // A waiting job may never have been placed.
    const bool needs_ranks = job.status.state != JobState::kWaiting || num_placements > 0;
    if (needs_ranks && num_placements != static_cast<size_t>(job.spec->config.world_size)) {
      return absl::DataLossError(absl::StrCat("job '", id.value(), "' has ", num_placements,
                                              " placements; its world size is ",
                                              job.spec->config.world_size));
    }
  }
  return absl::OkStatus();
}

const Job* DurableState::FindJob(const JobId& job) const {
  auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : &it->second;
}

Claims DurableState::ClaimedByOthers(const JobId& job) const {
  Claims claimed;
  for (const auto& [id, other] : jobs_) {
    if (id == job || IsOver(other.status.state)) continue;
    std::vector<DeviceId> places;
    for (const RankPlacement& p : other.status.placements) places.emplace_back(p.worker, p.device);
    // A completed job gives its devices away and keeps its memory (ADR 79).
    claimed.Add(*other.spec, places, members_, other.status.completed);
  }
  return claimed;
}

std::vector<JobId> DurableState::HoldersOfDevices(const JobId& job,
                                                  const std::set<DeviceId>* among) const {
  std::vector<JobId> holders;
  for (const auto& [id, other] : jobs_) {
    if (id == job || other.status.FreesDevices()) continue;
    const auto& placements = other.status.placements;
    if (std::any_of(placements.begin(), placements.end(), [&](const RankPlacement& place) {
          return among == nullptr || among->count({place.worker, place.device}) > 0;
        })) {
      holders.push_back(id);
    }
  }
  return holders;
}

std::vector<WorkerId> DurableState::ForgettableMembers() const {
  const auto is_lost = [](const auto& member) { return member.second.lost; };
  // Each tick asks, and mostly nobody is lost: then the ranks of all jobs need not be visited.
  const auto& all = members_.members();
  if (std::none_of(all.begin(), all.end(), is_lost)) return {};
  std::set<WorkerId> needed;
  for (const auto& [id, job] : jobs_) {
    if (IsOver(job.status.state)) continue;
    for (const RankPlacement& placement : job.status.placements) needed.insert(placement.worker);
  }
  std::vector<WorkerId> forgettable;
  for (const auto& [worker, member] : members_.members()) {
    if (member.lost && needed.count(worker) == 0) forgettable.push_back(worker);
  }
  return forgettable;
}

std::string DurableState::WhyPlacementBroken(const JobStatus& status) const {
  for (const RankPlacement& placement : status.placements) {
    const Member* member = members_.Find(placement.worker);
    if (member == nullptr || member->lost) {
      return absl::StrCat("worker '", placement.worker.value(), "' does not answer");
    }
    // The same name, but another life: its memory does not have the shards (ADR 11).
    if (member->incarnation != placement.incarnation) {
      return absl::StrCat("worker '", placement.worker.value(), "' started again");
    }
  }
  return "";
}

std::set<WorkerId> DurableState::RestartedWorkers(const JobStatus& status) const {
  std::set<WorkerId> restarted;
  for (const RankPlacement& placement : status.placements) {
    const Member* member = members_.Find(placement.worker);
    if (member != nullptr && member->incarnation != placement.incarnation)
      restarted.insert(placement.worker);
  }
  return restarted;
}

}  // namespace tessera::coordinator
