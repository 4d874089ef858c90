// The durable facts, each of which replaces the one of the same name before it. Replaying them all
// gives the state again; DurableState::Apply is the one place that says what each means.
#ifndef TESSERA_COORDINATOR_CORE_RECORDS_H_
#define TESSERA_COORDINATOR_CORE_RECORDS_H_

#include <string>
#include <variant>

#include "coordinator/core/hand_over.h"
#include "coordinator/core/job.h"
#include "coordinator/core/member_registry.h"
#include "coordinator/core/request_log.h"
#include "coordinator/core/save_log.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

struct JobSpecRecord {
  JobId job;
  JobSpecPtr spec;
  Creation creation;
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
// The newest one.
struct HandOverRecord {
  JobId job;
  HandOver hand_over;
};
// With everything that belongs to the job.
struct JobGoneRecord {
  JobId job;
};
// A creation that was deleted: what a worker holds of it, it is to drop.
struct DeletedJobRecord {
  JobId job;
  Creation creation;
};
struct DeletedJobGoneRecord {
  JobId job;
};
struct ClusterRecord {
  std::string id;  // Which cluster this is. Never changes.
  // Of requests for saves: at least. Beyond those that workers may have heard and the journal has
  // not.
  int64_t first_save_number = 1;
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
// The agreed order of every epoch of the job so far is over.
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
