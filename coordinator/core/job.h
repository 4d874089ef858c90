// The life of a job, as one enum and one transition function.
//
//               placed                 all prepared
//   kWaiting ───────────► kStarting ───────────────► kRunning
//      ▲                   │  ▲  │ placed (again)       │
//      └─── unplaceable ───┘  └──┘◄────── placed ───────┤
//      ▲                                                │
//      └────────────────── unplaceable ─────────────────┘
//
//   any of these ───── shards lost ──► kLost
//   any of these ───── handed over ──► kHandedOver
//   any but kDeleted ──── deleted ───► kDeleted
//
// Pure; thread-safe. "Placed" opens a new epoch in which every rank has a device. A lost job had
// committed steps whose result no worker holds any more. A handed-over job continues as another
// job. Both can only be deleted, and no worker holds them. kOrphaned is not a state that a job
// reaches: it shows a job that workers hold and the journal does not know (see orphans.h). A job
// whose trainers are done is in none of these states apart: its epoch goes on, and it gives its
// devices away (JobStatus::completed).
#ifndef TESSERA_COORDINATOR_CORE_JOB_H_
#define TESSERA_COORDINATOR_CORE_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/hand_over_state.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

enum class JobState { kWaiting, kStarting, kRunning, kDeleted, kLost, kHandedOver, kOrphaned };
enum class JobEvent { kPlaced, kUnplaceable, kAllPrepared, kShardsLost, kHandedOver, kDeleted };

absl::string_view Name(JobState state);

// The state after `event`, or nullopt where the event cannot happen in `state`.
std::optional<JobState> NextState(JobState state, JobEvent event);

// Whether a job in `state` has an epoch in which ranks may speak.
inline bool HasEpoch(JobState state) {
  return state == JobState::kStarting || state == JobState::kRunning;
}

// Whether a job in `state` is over: no worker holds it, and it has no device.
inline bool IsOver(JobState state) {
  return state == JobState::kDeleted || state == JobState::kLost || state == JobState::kHandedOver;
}

// The part of a job that changes and survives a restart. Copyable value.
struct JobStatus {
  JobState state = JobState::kWaiting;
  Epoch epoch;       // 0 before the first placement.
  Step resume_step;  // Of this epoch; meaningful in kRunning.
  // By rank. In kWaiting: where the ranks were, so that they return there. In a job that is over:
  // where the shards were; the devices are free.
  std::vector<RankPlacement> placements;
  // An epoch has begun on these placements: the shards are in the memory of these incarnations and
  // nowhere else. A rank moves to another worker only if other ranks have the same shards.
  bool bound = false;
  // For a bound job: workers that have not confirmed, since they got their ranks, that they hold
  // the shards. They may be empty.
  std::set<WorkerId> unconfirmed;
  // In kRunning: the ranks that receive their shards from other ranks in this epoch.
  std::set<int32_t> rebuilt_ranks;
  // For a job on several workers, in kRunning: where each rank listens in this epoch, and the
  // decision about resume_step for workers that do not know it.
  std::map<int32_t, std::string> rank_addresses;
  std::string decision;
  std::string reason;    // Why this epoch (or wait) began.
  int failure_code = 0;  // As RankFailure::code: the failure that caused it.
  // All trainers have said that they are done. The job holds memory, but no devices, until a trainer
  // comes again.
  bool completed = false;
  // By rank: the attachments after which their trainers were done when the job was completed last.
  // They do not complete it again.
  std::map<int32_t, Incarnation> completed_after;

  bool HasRankOn(const WorkerId& worker) const;
  // Whether others may use its devices.
  bool FreesDevices() const { return completed || IsOver(state); }
};

// Errors: FailedPrecondition  the job is over (names the job and the reason)
absl::Status CheckNotOver(const JobId& id, const JobStatus& status);

// A consistent copy of one job, for replies, watches and commands.
struct JobView {
  JobId id;
  Generation generation;
  JobSpecPtr spec;
  JobStatus status;
  Step committed_step;
  std::map<int32_t, RankStatus> ranks;
  std::optional<HandOver> hand_over;  // The newest, if there was any.
  std::string owner, attach_key;
  int64_t spec_bytes = 0;                       // SizeBytes(*spec); 0 for an orphan.
  std::vector<Rank> missing_ranks, slow_ranks;  // That hold the others up: see RankWatch.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_H_
