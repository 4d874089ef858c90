// What the coordinator hears, as plain values. An event of another generation than the job's
// belongs to a deleted job. The reader has already bounded every size.
#ifndef TESSERA_COORDINATOR_CORE_EVENTS_H_
#define TESSERA_COORDINATOR_CORE_EVENTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/save_log.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

struct CreateJobEvent {
  std::string request_id;
  JobId job;
  JobSpecPtr spec;
  std::string owner = "";       // The caller. An existing job must have this owner.
  bool by_operator = false;     // The job may have any owner.
  std::string attach_key = "";  // As Job::attach_key, if the job is new.
};
struct DeleteJobEvent {
  std::string request_id;
  JobId job;
  std::string owner = "";  // As in CreateJobEvent.
  bool by_operator = false;
};
struct RequestSaveEvent {
  std::string request_id;
  JobId job;
  SaveSpec spec;
  absl::Duration expires_in = absl::InfiniteDuration();
};

// One life of a worker.
struct Sender {
  WorkerId worker;
  Incarnation incarnation;
};
struct JobProgress {
  JobId job;
  Generation generation;
  Epoch epoch;
  std::map<int32_t, RankStatus> ranks;
};
struct OrderAnnouncement {
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  OrderPosition position;
  OrderEntry entry;
};
struct StepReport {
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  Step step;
  uint64_t order_hash = 0;
  // Of the steps right before it, oldest first.
  std::vector<uint64_t> earlier_order_hashes;
};
struct RankFailure {  // Rank -1: the worker cannot hold the job at all.
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  std::string reason;
  int code = 0;  // Returned to the trainers of all ranks; 0: the step may be retried.
};
// All that a worker knows of a job that it holds.
struct HeldJob {
  struct Place {
    WorkerId worker;
    int32_t device = 0;
    Epoch since = Epoch();  // As RankPlacement::since.
  };
  JobId job;
  Generation generation;
  JobSpecPtr spec;
  Epoch epoch;                // The last one that was prepared.
  std::vector<Place> places;  // By rank, in that epoch.
  Step decided_step;
  bool has_begun = false;  // An epoch has begun, ever.
  std::string owner = "", attach_key = "";
};
struct EpochPrepared {
  JobId job;
  Generation generation;
  Epoch epoch;
  Step decided_step;
  std::map<int32_t, std::string> rank_addresses;  // Of the worker's ranks.
  std::string decision;                           // Of decided_step.
  bool holds_nothing = false;                     // No values of earlier epochs.
};
struct SaveReport {
  enum class Phase { kBegun, kWriting, kEnded };
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  int64_t ordinal = 0;  // Which of the epoch's saves.
  int64_t number = 0;   // Of the request; 0: the trainers decided to save.
  SaveSpec spec;
  Phase phase = Phase::kBegun;
  Step step;  // As trainers count.
  int64_t written_bytes = 0, all_bytes = 0;
  // Set in kEnded.
  absl::Duration took;
  int64_t size_bytes = 0;
  absl::Status outcome;
  std::vector<std::string> removed;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EVENTS_H_
