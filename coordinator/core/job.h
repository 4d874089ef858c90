// The life of a job, as one enum and one transition function.
//
//               placed                 all prepared
//   kWaiting ───────────► kStarting ───────────────► kRunning
//      ▲                   │  ▲  │ placed (again)       │
//      └─── unplaceable ───┘  └──┘◄────── placed ───────┤
//      ▲                                                │
//      └────────────────── unplaceable ─────────────────┘      any ── deleted ──► kDeleted
//
// Pure; thread-safe. "Placed" opens a new epoch whose ranks all have a device.
#ifndef TESSERA_COORDINATOR_CORE_JOB_H_
#define TESSERA_COORDINATOR_CORE_JOB_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

enum class JobState { kWaiting, kStarting, kRunning, kDeleted };
enum class JobEvent { kPlaced, kUnplaceable, kAllPrepared, kDeleted };

absl::string_view Name(JobState state);

// The state after `event`, or nullopt where the event cannot happen in `state`.
std::optional<JobState> NextState(JobState state, JobEvent event);

// What of a job changes and survives a restart. Copyable value.
struct JobStatus {
  JobState state = JobState::kWaiting;
  Epoch epoch;       // 0 before the first placement.
  Step resume_step;  // Of this epoch; meaningful in kRunning.
  // By rank. In kWaiting after a loss: where the ranks were, so that they go back there.
  std::vector<RankPlacement> placements;
  std::string reason;  // Why this epoch (or this waiting) began.
};

// A consistent copy of one job, for replies, watches and commands.
struct JobView {
  JobId id;
  Creation creation;
  JobSpecPtr spec;
  JobStatus status;
  Step committed_step;
  std::map<int32_t, RankStatus> ranks;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_H_
