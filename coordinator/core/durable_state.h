// Everything that survives a restart. It changes only through Apply, both live and in replay.
// Copyable value; thread-compatible. Copies are cheap, because they share the specs.
#ifndef TESSERA_COORDINATOR_CORE_DURABLE_STATE_H_
#define TESSERA_COORDINATOR_CORE_DURABLE_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/deleted_jobs.h"
#include "coordinator/core/member_registry.h"
#include "coordinator/core/rank_assigner.h"
#include "coordinator/core/records.h"
#include "coordinator/core/request_log.h"

namespace tessera::coordinator {

struct Job {
  JobSpecPtr spec;
  int64_t spec_bytes = 0;  // SizeBytes(*spec).
  Generation generation;
  std::string owner;  // Who created it; empty: unknown, so only operators may change it.
  // Secret: trainers of other users than their worker's attach with it. Empty: they cannot.
  std::string attach_key;
  JobStatus status;
  Step committed_step;
  std::optional<HandOver> hand_over;

  bool HasBegun() const { return status.bound || IsOver(status.state); }  // An epoch has begun.
  bool IsFrozen() const { return hand_over.has_value() && Stands(hand_over->phase); }
  // Copy on write: may be shared with copies of this job. Null: the job never had a save.
  std::shared_ptr<SaveLog> save_log;

  const SaveLog& saves() const;
};

class DurableState {
 public:
  explicit DurableState(int64_t request_capacity = 4096) : requests_(request_capacity) {}

  void Apply(const StateRecord& record);
  // Reverts a record that is about to be applied. Undos run in reverse order of Apply.
  using Undo = std::function<void(DurableState* state)>;
  Undo UndoOf(const StateRecord& record) const;
  // Whether the replayed records are consistent.
  // Errors: DataLoss  a job without a spec, or with ranks that do not fit it
  absl::Status CheckConsistent() const;

  const Job* FindJob(const JobId& job) const;
  const std::map<JobId, Job>& jobs() const { return jobs_; }
  const MemberRegistry& members() const { return members_; }
  const RequestLog& requests() const { return requests_; }
  const ClusterRecord& cluster() const { return cluster_; }  // An empty id: not named yet.

  const DeletedJobs& deleted() const { return *deleted_; }

  // What jobs other than `job` hold. A job that is over holds nothing, a completed one its memory.
  Claims ClaimedByOthers(const JobId& job) const;
  // The other jobs that hold devices, in the order of their ids; `among`: at least one of these.
  std::vector<JobId> HoldersOfDevices(const JobId& job, const std::set<DeviceId>* among) const;
  // An upper bound on the number of free devices of live workers.
  int64_t MaxFreeDevices() const;
  // Lost workers on which no job has a rank. They need not be remembered.
  std::vector<WorkerId> ForgettableMembers() const;
  // Why the ranks of `status` cannot stay where they are ("worker 'a' does not answer"), or empty.
  std::string WhyPlacementBroken(const JobStatus& status) const;
  // The workers of `status` that have restarted since and have lost their memory.
  std::set<WorkerId> RestartedWorkers(const JobStatus& status) const;

 private:
  DeletedJobs& OwnDeleted();
  Undo UndoOfJob(const JobId& id) const;
  Undo UndoOfMember(const WorkerId& id) const;
  Undo UndoOfRequest(const std::string& id) const;

  std::map<JobId, Job> jobs_;
  MemberRegistry members_;
  RequestLog requests_;
  ClusterRecord cluster_;
  // Copy on write: may be shared with copies of this state.
  std::shared_ptr<DeletedJobs> deleted_ = std::make_shared<DeletedJobs>();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_DURABLE_STATE_H_
