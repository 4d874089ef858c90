// The life of a job, as one enum and one transition function.
//
//               placed                 all prepared
//   kWaiting ───────────► kStarting ───────────────► kRunning
//      ▲                   │  ▲  │ placed (again)       │
//      └─── unplaceable ───┘  └──┘◄────── placed ───────┤      any ─── deleted ──► kDeleted
//      ▲                                                │      any but kDeleted, kHandedOver
//      └────────────────── unplaceable ─────────────────┘          ── shards lost ──► kLost
//                                                              any but kDeleted, kLost
//                                                                  ── handed over ──► kHandedOver
//
// Pure; thread-safe. "Placed" opens a new epoch whose ranks all have a device. A lost job had
// committed steps and nobody holds their result any more; with the state of one that is handed over
// another job goes on. Nothing but their deletion leads out of these two, and no worker holds them.
// kOrphaned is none of a job's states, but how one is shown that workers hold and the journal does
// not know: see orphans.h.
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
#include "coordinator/core/hand_over.h"
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

// What of a job changes and survives a restart. Copyable value.
struct JobStatus {
  JobState state = JobState::kWaiting;
  Epoch epoch;       // 0 before the first placement.
  Step resume_step;  // Of this epoch; meaningful in kRunning.
  // By rank. In kWaiting: where the ranks were, so that they go back there. Of one that is
  // over: where the shards were; the devices are free.
  std::vector<RankPlacement> placements;
  // An epoch has begun on these placements: the shards are in the memory of these incarnations and
  // nowhere else. A rank goes to another worker only where others have the same shards.
  bool bound = false;
  // Of one that is bound: workers that have not said since they got their ranks that they hold
  // them. They may be empty.
  std::set<WorkerId> unconfirmed;
  // In kRunning: the ranks that are given their shards by others in this epoch.
  std::set<int32_t> rebuilt_ranks;
  // Of a job on several workers, in kRunning: where each rank listens in this epoch, and what was
  // decided of resume_step, for workers that do not know it.
  std::map<int32_t, std::string> rank_addresses;
  std::string decision;
  std::string reason;    // Why this epoch (or this waiting) began.
  int failure_code = 0;  // As RankFailure::code, of the failure for which it did.
};

// OK where the job is not over. Errors: FailedPrecondition  names the job, and why.
absl::Status CheckNotOver(const JobId& id, const JobStatus& status);

// A consistent copy of one job, for replies, watches and commands.
struct JobView {
  JobId id;
  Creation creation;
  JobSpecPtr spec;
  JobStatus status;
  Step committed_step;
  std::map<int32_t, RankStatus> ranks;
  std::optional<HandOver> hand_over;  // The newest, if there was any.
  std::string owner, attach_key;
  int64_t spec_bytes = 0;  // SizeBytes(*spec); 0 of an orphan.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_H_
