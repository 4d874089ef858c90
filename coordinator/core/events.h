// What the coordinator hears, as plain values. The reader has bounded every size already.
#ifndef TESSERA_COORDINATOR_CORE_EVENTS_H_
#define TESSERA_COORDINATOR_CORE_EVENTS_H_

#include <map>
#include <string>

#include "coordinator/core/types.h"

namespace tessera::coordinator {

struct CreateJobEvent {
  std::string request_id;
  JobId job;
  JobSpecPtr spec;
};
struct DeleteJobEvent {
  std::string request_id;
  JobId job;
};

// One life of a worker.
struct Sender {
  WorkerId worker;
  Incarnation incarnation;
};
struct JobProgress {
  JobId job;
  Epoch epoch;
  std::map<int32_t, RankStatus> ranks;
};
struct OrderAnnouncement {
  JobId job;
  Epoch epoch;
  Rank rank;
  OrderPosition position;
  OrderEntry entry;
};
struct StepReport {
  JobId job;
  Epoch epoch;
  Rank rank;
  Step step;
  uint64_t order_hash = 0;
};
struct RankFailure {  // Of rank -1: the worker cannot hold the job at all.
  JobId job;
  Epoch epoch;
  Rank rank;
  std::string reason;
};
struct EpochPrepared {
  JobId job;
  Epoch epoch;
  Step decided_step;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EVENTS_H_
