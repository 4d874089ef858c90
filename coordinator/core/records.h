// The durable facts. Each one replaces the previous fact of the same name. To replay all of them
// restores the state; only DurableState::Apply defines what each one means.
#ifndef TESSERA_COORDINATOR_CORE_RECORDS_H_
#define TESSERA_COORDINATOR_CORE_RECORDS_H_

#include <string>
#include <variant>

#include "coordinator/core/hand_over_state.h"
#include "coordinator/core/job.h"
#include "coordinator/core/member_registry.h"
#include "coordinator/core/request_log.h"
#include "coordinator/core/save_log.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

struct JobSpecRecord {
  JobId job;
  JobSpecPtr spec;
  Generation generation;
  std::string owner = "", attach_key = "";
};
struct JobStatusRecord {
  JobId job;
  JobStatus status;
};
struct JobStepRecord {
  JobId job;
  Step committed_step;
};
// The newest hand-over of the job.
struct HandOverRecord {
  JobId job;
  HandOver hand_over;
};
// Removes the job with everything that belongs to it.
struct JobGoneRecord {
  JobId job;
};
// A deleted generation. A worker that still holds it must drop it.
struct DeletedJobRecord {
  JobId job;
  Generation generation;
};
struct DeletedJobGoneRecord {
  JobId job;
};
struct ClusterRecord {
  std::string id;  // Which cluster this is. Never changes.
  // The smallest number for a new request to save: larger than any that workers may have heard and
  // the journal has lost.
  int64_t first_save_number = 1;
  // Workers may not have said yet what they hold and the journal lacks.
  bool is_taking_over = false;
};
struct MemberRecord {
  WorkerId worker;
  Member member;
};
struct MemberGoneRecord {
  WorkerId worker;
};
struct RequestRecord {
  std::string request_id;
  Request request;
};
struct RequestGoneRecord {
  std::string request_id;
};
// One agreed position of the execution order.
struct OrderRecord {
  JobId job;
  Epoch epoch;
  OrderPosition position;
  OrderEntry entry;
};
// The agreed orders of all epochs of the job so far are obsolete.
struct EpochOverRecord {
  JobId job;
};

struct SaveRecord {
  JobId job;
  Save save;
};
struct SaveGoneRecord {
  JobId job;
  int64_t number = 0;
};

using StateRecord =
    std::variant<JobSpecRecord, JobStatusRecord, JobStepRecord, JobGoneRecord, MemberRecord,
                 MemberGoneRecord, RequestRecord, RequestGoneRecord, OrderRecord, EpochOverRecord,
                 HandOverRecord, SaveRecord, SaveGoneRecord, DeletedJobRecord, DeletedJobGoneRecord,
                 ClusterRecord>;

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RECORDS_H_
