// Everything that survives a restart. Changes only through Apply, live and in replay alike.
// Copyable value; thread-compatible. Copies share the specs, so they cost little.
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
  Creation creation;
  std::string owner;  // Who made it; empty: nobody but operators.
  // With which its trainers attach as other users than their worker's; secret. Empty: they cannot.
  std::string attach_key;
  JobStatus status;
  Step committed_step;
  std::optional<HandOver> hand_over;

  bool HasBegun() const { return status.bound || IsOver(status.state); }  // An epoch.
  bool IsFrozen() const { return hand_over.has_value() && Stands(hand_over->phase); }
  // Shared with copies of this, and changed only where it is not; null: it never had a save.
  std::shared_ptr<SaveLog> save_log;

  const SaveLog& saves() const;
};

class DurableState {
 public:
  explicit DurableState(int64_t request_capacity = 4096) : requests_(request_capacity) {}

  void Apply(const StateRecord& record);
  // Takes back a record that is about to be applied; those applied after it are taken back first.
  using Undo = std::function<void(DurableState* state)>;
  Undo UndoOf(const StateRecord& record) const;
  // Whether what was replayed belongs together.
  // Errors: DataLoss  a job without a spec, or with ranks that do not fit it
  absl::Status CheckConsistent() const;

  const Job* FindJob(const JobId& job) const;
  const std::map<JobId, Job>& jobs() const { return jobs_; }
  const MemberRegistry& members() const { return members_; }
  const RequestLog& requests() const { return requests_; }
  const ClusterRecord& cluster() const { return cluster_; }  // Id empty: it has no name yet.

  const DeletedJobs& deleted() const { return *deleted_; }

  // Devices that jobs other than `job` hold; one that is over holds none.
  Claims ClaimedByOthers(const JobId& job) const;
  // At least as many devices as there are of live workers without a job.
  int64_t MaxFreeDevices() const;
  // Lost workers on which no job has a rank: nothing is gained by remembering them.
  std::vector<WorkerId> ForgettableMembers() const;
  // Empty, or why the ranks of `status` cannot go on where they are: "worker 'a' does not answer".
  std::string WhyPlacementBroken(const JobStatus& status) const;
  // The workers of `status` that have started again since, so that their memory of then is gone.
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
  // Shared with copies of this, and changed only where it is not.
  std::shared_ptr<DeletedJobs> deleted_ = std::make_shared<DeletedJobs>();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_DURABLE_STATE_H_
