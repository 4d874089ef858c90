// What must never happen in a simulated cluster.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/simulated_cluster.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

// Whether the worker has had ranks there since it last took part.
bool IsPlaced(const SimulatedWorker& worker, const SimulatedHeldJob& held,
              const std::vector<RankPlacement>& places) {
  return std::any_of(places.begin(), places.end(), [&](const RankPlacement& place) {
    return place.worker == worker.id() && place.since <= held.epoch() &&
           place.incarnation == worker.incarnation();
  });
}

}  // namespace

void SimulatedCluster::OnDurable(const Effects& effects) {
  for (const StateRecord& record : effects.records) {
    if (const auto* spec = std::get_if<JobSpecRecord>(&record)) {
      OnSpec(*spec, effects);
      statuses_.erase(spec->job);
    } else if (const auto* status = std::get_if<JobStatusRecord>(&record)) {
      CheckKeepsACopy(*status);
      CheckDevices();
    } else if (const auto* save = std::get_if<SaveRecord>(&record)) {
      CheckSave(*save);
    } else if (const auto* forgotten = std::get_if<MemberGoneRecord>(&record)) {
      for (Node& node : nodes_) node.was_forgotten |= node.worker->id() == forgotten->worker;
    } else if (const auto* gone = std::get_if<JobGoneRecord>(&record)) {
      statuses_.erase(gone->job);
    }
  }
  for (const JobId& job : effects.changed_jobs) CheckShown(job);
  for (const Outgoing& outgoing : effects.commands) {
    if (const auto* release = std::get_if<OrderRelease>(&outgoing.command)) {
      FindTruth(release->job, release->generation)->CheckRelease(*release);
    } else if (const auto* start = std::get_if<StartEpoch>(&outgoing.command)) {
      FindTruth(start->job, start->generation)->CheckStart(*start);
    }
  }
}

void SimulatedCluster::OnSpec(const JobSpecRecord& spec, const Effects& effects) {
  std::unique_ptr<SimulatedTruth>& truth = truths_[{spec.job, spec.generation}];
  const bool is_made = std::any_of(
      effects.records.begin(), effects.records.end(),
      [](const StateRecord& record) { return std::holds_alternative<RequestRecord>(record); });
  if (!is_made) return;  // It is taken over.
  // Where the wall clock was set back, a job of a lost journal may have had that number.
  if (truth != nullptr) lost_truths_.push_back(std::move(truth));
  truth = std::make_unique<SimulatedTruth>(spec, &dice_);
}

void SimulatedCluster::CheckSave(const SaveRecord& record) {
  const absl::StatusOr<JobView> view = coordinator_.core().GetJob(record.job);
  if (view.ok())
    FindTruth(view->id, view->generation)->saves().Check(record.save, coordinator_.clock());
}

void SimulatedCluster::CheckDeadlines() {
  for (const auto& owner : owners_) {
    const absl::StatusOr<JobView> view = coordinator_.core().GetJob(owner->id());
    const absl::StatusOr<std::vector<SaveView>> saves = coordinator_.core().ListSaves(owner->id());
    for (size_t i = 0; view.ok() && saves.ok() && i < saves->size(); ++i) {
      if ((*saves)[i].save.state == SaveState::kWaiting)
        FindTruth(view->id, view->generation)
            ->saves()
            .CheckWaits((*saves)[i].save.number, coordinator_.clock());
    }
  }
}

void SimulatedCluster::CheckShown(const JobId& job) {
  const absl::StatusOr<JobView> view = coordinator_.core().GetJob(job);
  if (view.ok()) FindTruth(view->id, view->generation)->CheckView(*view);
}

void SimulatedCluster::CheckDevices() const {
  std::set<std::pair<WorkerId, int32_t>> taken;
  for (const auto& [id, status] : statuses_) {
    if (status.FreesDevices()) continue;
    for (const RankPlacement& place : status.placements) {
      EXPECT_TRUE(taken.emplace(place.worker, place.device).second)
          << "device " << place.device << " of " << place.worker.value() << " is of two jobs";
    }
  }
}

bool SimulatedCluster::IsKnown(const Node& node) const {
  return node.worker->connected() && node.worker->IsAdmitted();
}

void SimulatedCluster::CheckKeepsACopy(const JobStatusRecord& record) {
  const JobStatus before = std::exchange(statuses_[record.job], record.status);
  const absl::StatusOr<JobView> view = coordinator_.core().GetJob(record.job);
  if (!view.ok()) return;
  const SimulatedTruth& truth = *FindTruth(view->id, view->generation);
  if (!truth.is_hybrid()) return;
  if (record.status.state == JobState::kLost) {
    if (before.state == JobState::kLost) return;
    EXPECT_FALSE(IsHeld(truth, nullptr)) << "the job is lost, and a worker has all of it";
    return;
  }
  for (const RankPlacement& place : record.status.placements) {
    // It may have died, which nobody has told the coordinator.
    for (const Node& node : nodes_) {
      if (node.worker->id() == place.worker && !IsKnown(node)) return;
    }
  }
  for (const Node& node : nodes_) {
    const SimulatedHeldJob* held = node.worker->Find(truth.id(), truth.generation());
    // Before the first step there is nothing that initial values do not make again.
    if (truth.decided() == 0 || held == nullptr || !held->HoldsAll() ||
        !IsPlaced(*node.worker, *held, before.placements) ||
        IsPlaced(*node.worker, *held, record.status.placements)) {
      continue;
    }
    EXPECT_TRUE(IsHeld(truth, node.worker.get()))
        << "the last of the shards are void on " << node.worker->id().value() << ": " << Describe()
        << "\ndecided " << truth.decided();
  }
}

bool SimulatedCluster::IsHeld(const SimulatedTruth& truth, const SimulatedWorker* without) const {
  const absl::StatusOr<JobView> view = coordinator_.core().GetJob(truth.id());
  return view.ok() && std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
           const SimulatedHeldJob* held = node.worker->Find(truth.id(), truth.generation());
           return node.worker.get() != without && held != nullptr && held->HoldsAll() &&
                  held->decided_step() >= truth.decided() - 1 &&
                  IsPlaced(*node.worker, *held, view->status.placements);
         });
}

int64_t SimulatedCluster::committed_steps() const {
  int64_t steps = 0;
  for (const auto& [key, truth] : truths_) steps += truth->shown_committed();
  return steps;
}

int64_t SimulatedCluster::num_epochs() const {
  int64_t epochs = 0;
  for (const auto& [key, truth] : truths_) epochs += truth->shown_epoch();
  return epochs;
}

int64_t SimulatedCluster::num_saved() const {
  int64_t saved = 0;
  for (const auto& [key, truth] : truths_) saved += truth->saves().num_journalled();
  return saved;
}

int64_t SimulatedCluster::num_put() const {
  int64_t put = 0;
  for (const auto& [key, truth] : truths_) put += truth->puts().num_set();
  return put;
}

void SimulatedCluster::AwaitSteps(int64_t steps) {
  awaited_more_ = steps;
  for (const auto& [key, truth] : truths_) awaited_steps_[key] = truth->shown_committed() + steps;
}

bool SimulatedCluster::HasTakenThem() const {
  if (puts_.HasPending()) return false;
  std::set<Generation> generations;
  for (const auto& owner : owners_) generations.insert(owner->generation());
  // What an older journal does not know is kept.
  for (const Node& node : nodes_) {
    for (const auto& [id, job] : node.worker->jobs()) {
      if (!has_copies_ && generations.count(job->truth().generation()) == 0) return false;
    }
  }
  return std::all_of(owners_.begin(), owners_.end(), [&](const auto& owner) {
    const auto truth = truths_.find({owner->id(), owner->generation()});
    if (truth == truths_.end() || owner->HasPendingSaves()) return false;
    const auto awaited = awaited_steps_.find(truth->first);
    const int64_t steps = awaited == awaited_steps_.end() ? awaited_more_ : awaited->second;
    return truth->second->shown_committed() >= steps;
  });
}

std::string SimulatedCluster::Describe() const {
  std::string text;
  for (const JobView& view : coordinator_.core().ListJobs()) {
    absl::StrAppend(&text, view.id.value(), "/", view.generation.value(), " ",
                    Name(view.status.state), " in epoch ", view.status.epoch.value(),
                    " after step ", view.committed_step.value(), ": ", view.status.reason, "\n");
  }
  for (const Node& node : nodes_)
    absl::StrAppend(&text, node.worker->Describe(), node.silent ? ", silent" : "", "\n");
  return text;
}

}  // namespace tessera::coordinator
