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

#include "coordinator/core/job.h"
#include "coordinator/core/records.h"

namespace tessera::coordinator {

struct PrepareEpoch {
  JobView job;
  std::string reason;
  bool begin_anew = false;    // What a worker has of the job is void.
  Creation deleted_creation;  // The newest of this job id; 0: none.
  int code = 0;               // As RankFailure::code, of what ended the epoch before.
};
struct StartEpoch {
  JobId job;
  Creation creation;
  Epoch epoch;
  Step resume_step;
  std::map<int32_t, std::string> rank_addresses;
  std::string decision;
  bool frozen = false;  // No step is decided in it.
  std::set<int32_t> rebuilt_ranks;
};
struct OrderRelease {
  JobId job;
  Creation creation;
  Epoch epoch;
  Rank rank;
  OrderPosition position;
};
struct OrderMismatch {
  JobId job;
  Creation creation;
  Epoch epoch;
  OrderPosition position;
  std::string message;
};
struct DescribeJob {  // By a HeldJob.
  JobId job;
  Creation creation;
};
struct DropJob {
  JobId job;
  Creation creation;  // This one alone.
};
struct ServeState {  // Somebody reads the job's state; the core sends none.
  JobId job;
  Creation creation;
  std::string session;
};
struct StagePut {  // Somebody sets the job's values; the core sends none.
  JobId job;
  Creation creation;
  std::string session;
};
struct WantSave {  // After the job's next step.
  JobId job;
  Creation creation;
  int64_t number = 0;  // 0: none is wanted.
  SaveForm form;
  bool cancelled = false;  // It is under way, and not wanted any more.
};
using Command = std::variant<PrepareEpoch, StartEpoch, OrderRelease, OrderMismatch, DropJob,
                             ServeState, StagePut, WantSave, DescribeJob>;

struct Outgoing {
  WorkerId worker;
  Command command;
};

struct Effects {
  // Nothing else may happen before these are durable; where they cannot be made so, the event is
  // refused (Coordinator::Rollback).
  std::vector<StateRecord> records;
  // Help a restarted coordinator, but nobody waits for the disk: enough that they survive the death
  // of this process. Where they cannot be written, the event goes on.
  std::vector<OrderRecord> order_records;
  std::vector<Outgoing> commands;
  std::set<JobId> changed_jobs;  // To show again to whoever watches them.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EFFECTS_H_
