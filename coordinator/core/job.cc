#include "coordinator/core/job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {

absl::string_view Name(JobState state) {
  switch (state) {
    case JobState::kWaiting:
      return "WAITING";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kDeleted:
      return "DELETED";
    case JobState::kLost:
      return "LOST";
    case JobState::kHandedOver:
      return "HANDED_OVER";
    case JobState::kOrphaned:
      return "ORPHANED";
  }
  return "?";
}

bool JobStatus::HasRankOn(const WorkerId& worker) const {
  return std::any_of(placements.begin(), placements.end(),
                     [&](const RankPlacement& p) { return p.worker == worker; });
}

absl::Status CheckNotOver(const JobId& id, const JobStatus& status) {
  if (!IsOver(status.state)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", id.value(), "' is ",
                   status.state == JobState::kLost ? "lost: " : "over: ", status.reason));
}

std::optional<JobState> NextState(JobState state, JobEvent event) {
  if (state == JobState::kDeleted) return std::nullopt;
  // No worker has shards of a job that is over, so it cannot be placed again.
  if (IsOver(state) && event != JobEvent::kDeleted) return std::nullopt;
  switch (event) {
    case JobEvent::kPlaced:
      // Also from kRunning: a failure opens the next epoch.
      return JobState::kStarting;
    case JobEvent::kUnplaceable:
      return JobState::kWaiting;
    case JobEvent::kAllPrepared:
      if (state != JobState::kStarting) return std::nullopt;
      return JobState::kRunning;
    case JobEvent::kShardsLost:
      return JobState::kLost;
    case JobEvent::kHandedOver:
      return JobState::kHandedOver;
    case JobEvent::kDeleted:
      return JobState::kDeleted;
  }
  return std::nullopt;
}

}  // namespace tessera::coordinator
