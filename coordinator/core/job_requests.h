// Requests of clients to create, delete and show jobs. Neither copyable nor movable, because
// CoordinatorState::OnRollback points to it. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_JOB_REQUESTS_H_
#define TESSERA_COORDINATOR_CORE_JOB_REQUESTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/events.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/orphan_adopter.h"
#include "coordinator/core/owner_limits.h"

namespace tessera::coordinator {

class JobRequests {
 public:
  // All must outlive it.
  JobRequests(CoordinatorState* state, EpochProtocol* epochs, const OrphanAdopter* orphans,
              Membership* members)
      : state_(state), epochs_(epochs), orphans_(orphans), members_(members) {}
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  // With the errors of the methods of Coordinator of these names.
  absl::StatusOr<JobView> CreateJob(const CreateJobEvent& event, absl::Time now, Effects* effects);
  absl::Status DeleteJob(const DeleteJobEvent& event, absl::Time now, Effects* effects);
  absl::StatusOr<JobView> GetJob(const JobId& job) const;
  std::vector<JobView> ListJobs(const JobId& after, size_t max_jobs) const;

 private:
  // The earlier request of this id, or null. Errors: AlreadyExists  it was another request
  absl::StatusOr<const Request*> FindReplay(const std::string& request_id, RequestKind kind,
                                            const JobId& job) const;
  // For a request, and for the job that it creates.
  int64_t NextSequence(absl::Time now) const;
  // Errors: Unavailable  only workers know the job, or its records cannot be read (says which)
  absl::Status CheckKnown(const JobId& id) const;
  // Of a completed job: its trainers come again. Errors: Unavailable  other jobs have its devices
  absl::Status Continue(const JobId& id, const Job& job, Effects* effects);
  absl::Status DeleteOrphan(const DeleteJobEvent& event, absl::Time now, Effects* effects);
  void RememberDeleted(const JobId& job, Generation generation, Effects* effects);
  void RememberRequest(const std::string& request_id, Request request, Effects* effects);

  CoordinatorState* const state_;
  EpochProtocol* const epochs_;
  const OrphanAdopter* const orphans_;
  Membership* const members_;
  OwnerLimits owner_limits_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_REQUESTS_H_
