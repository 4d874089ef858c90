// What must never happen in a simulated cluster.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/simulated_cluster.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

void SimulatedCluster::CheckShown() {
  const absl::StatusOr<JobView> job = core_.GetJob(kJob);
  if (!job.ok()) return;  // Deleted, and not created again yet.
  const JobView& view = *job;
  EXPECT_GE(view.committed_step.value(), shown_committed_) << "a committed step was lost";
  EXPECT_LE(view.committed_step.value(), max_decided_) << "a step committed that nobody decided";
  EXPECT_GE(view.status.epoch.value(), shown_epoch_);
  shown_committed_ = view.committed_step.value();
  shown_epoch_ = view.status.epoch.value();
  if (is_hybrid()) CheckKeepsACopy(view);
}

void SimulatedCluster::CheckKeepsACopy(const JobView& view) {
  const std::vector<RankPlacement> before = std::exchange(placements_, view.status.placements);
  if (view.status.state == JobState::kLost || view.creation != creation_) return;
  for (const RankPlacement& place : placements_) {
    // It may have died, which nobody has told the coordinator.
    for (const Worker& worker : workers_) {
      if (worker.id == place.worker && !worker.connected) return;
    }
  }
  for (const Worker& worker : workers_) {
    // Before the first step there is nothing that initial values do not make again.
    if (max_decided_ == 0 || !HoldsAll(worker) || !IsPlaced(worker, before) ||
        IsPlaced(worker, placements_)) {
      continue;
    }
    EXPECT_TRUE(IsHeld(&worker)) << "the last of the shards are void on " << worker.id.value()
                                 << ": " << Describe() << "\ndecided " << max_decided_;
  }
}

void SimulatedCluster::CheckRelease(const OrderRelease& release) {
  const auto& entries =
      announced_[{release.epoch, release.position.step, release.position.sequence}];
  EXPECT_EQ(entries.size(), world_size_) << "released before all announced";
  for (const auto& [rank, entry] : entries) {
    EXPECT_EQ(entry, entries.begin()->second) << "released though the entries differ";
  }
}

bool SimulatedCluster::IsPlaced(const Worker& worker, const std::vector<RankPlacement>& places) {
  return std::any_of(places.begin(), places.end(), [&](const RankPlacement& place) {
    return place.worker == worker.id && place.since <= worker.epoch &&
           place.incarnation == Incarnation(worker.incarnation);
  });
}

bool SimulatedCluster::IsHeld(const Worker* without) const {
  const absl::StatusOr<JobView> view = core_.GetJob(kJob);
  return view.ok() && std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
           return &worker != without && HoldsAll(worker) &&
                  worker.decided_step >= max_decided_ - 1 &&
                  IsPlaced(worker, view->status.placements);
         });
}

std::string SimulatedCluster::Describe() const {
  const absl::StatusOr<JobView> view = core_.GetJob(kJob);
  if (!view.ok()) return view.status().ToString();
  std::string text =
      absl::StrCat(Name(view->status.state), " in epoch ", view->status.epoch.value(),
                   " after step ", view->committed_step.value(), ": ", view->status.reason);
  for (const Worker& worker : workers_) {
    absl::StrAppend(&text, "\n", worker.id.value(), "/", worker.incarnation, ": epoch ",
                    worker.epoch.value(), worker.connected ? ", connected" : ", away",
                    worker.running ? ", running" : "", worker.has_values ? ", has values" : "",
                    worker.lacks_values ? ", lacks values" : "", ", decided ", worker.decided_step,
                    ", ranks ", worker.ranks.size(), ", inbox ", worker.inbox.size());
  }
  return text;
}

}  // namespace tessera::coordinator
