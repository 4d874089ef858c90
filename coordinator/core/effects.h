// What the coordinator's core asks its surroundings to do, in this order: make the records durable,
// then send the commands and wake the watchers. Plain values.
#ifndef TESSERA_COORDINATOR_CORE_EFFECTS_H_
#define TESSERA_COORDINATOR_CORE_EFFECTS_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/cluster_event.h"
#include "coordinator/core/job.h"
#include "coordinator/core/records.h"

namespace tessera::coordinator {

struct PrepareEpoch {
  JobView job;
  std::string reason;
  bool discards_state = false;    // The worker discards what it has of the job.
  Generation deleted_generation;  // The newest of this job id; 0: none.
  int code = 0;                   // As RankFailure::code: what ended the previous epoch.
};
struct StartEpoch {
  JobId job;
  Generation generation;
  Epoch epoch;
  Step resume_step;
  std::map<int32_t, std::string> rank_addresses;
  std::string decision;
  bool frozen = false;  // No step is decided in it.
  std::set<int32_t> rebuilt_ranks;
};
struct OrderRelease {
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  OrderPosition position;
};
struct OrderMismatch {
  JobId job;
  Generation generation;
  Epoch epoch;
  OrderPosition position;
  std::string message;
  bool restart = false;  // All programs are to be started again.
};
struct DescribeJob {  // With a HeldJob.
  JobId job;
  Generation generation;
};
struct DropJob {
  JobId job;
  Generation generation;  // Only this one.
};
struct ServeState {  // A client reads the job's state. Not sent by the core.
  JobId job;
  Generation generation;
  std::string session;
};
struct StagePut {  // A client sets the job's values. Not sent by the core.
  JobId job;
  Generation generation;
  std::string session;
};
struct WantSave {  // To be made after the job's next step.
  JobId job;
  Generation generation;
  int64_t number = 0;  // 0: no save is requested.
  SaveSpec spec;
  bool cancelled = false;  // It is in progress and should stop.
};
using Command = std::variant<PrepareEpoch, StartEpoch, OrderRelease, OrderMismatch, DropJob,
                             ServeState, StagePut, WantSave, DescribeJob>;

struct Outgoing {
  WorkerId worker;
  Command command;
};

struct Effects {
  // These must be durable before anything else happens. If they cannot be, the event is refused
  // (Coordinator::Rollback).
  std::vector<StateRecord> records;
  // These help a restarted coordinator. They have to survive only this process, so nobody waits for
  // the disk. If they cannot be written, the event still succeeds.
  std::vector<OrderRecord> order_records;
  std::vector<Outgoing> commands;
  std::set<JobId> changed_jobs;  // Their watchers are notified.
  // For people. Where the event is refused, these did not happen.
  std::vector<ClusterEvent> events;
  std::map<JobId, EpochCause> opened_epochs;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EFFECTS_H_
