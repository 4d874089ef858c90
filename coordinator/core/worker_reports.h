// What connected workers report about the ranks of jobs, and what is sent again to a worker that
// connects. The sender of a report must have been accepted by Membership::Hear. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_WORKER_REPORTS_H_
#define TESSERA_COORDINATOR_CORE_WORKER_REPORTS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/events.h"
#include "coordinator/core/job_saves.h"
#include "coordinator/core/order_validator.h"
#include "coordinator/core/orphan_adopter.h"

namespace tessera::coordinator {

class WorkerReports {
 public:
  // All must outlive it.
  WorkerReports(CoordinatorState* state, JobSaves* saves, EpochProtocol* epochs,
                OrphanAdopter* orphans)
      : state_(state), saves_(saves), epochs_(epochs), orphans_(orphans) {}

  // Sends the worker again what it may have missed.
  void ResendOnConnect(const Sender& sender, Effects* effects) const;
  // Errors: InvalidArgument  a rank or unit that the job lacks, or a rank that is not on this
  //                          worker
  absl::Status Heartbeat(const Sender& sender, const std::vector<JobProgress>& jobs, absl::Time now,
                         Effects* effects);
  absl::Status Announce(const Sender& sender, const OrderAnnouncement& event, absl::Time now,
                        Effects* effects);
  absl::Status ReportStep(const Sender& sender, const StepReport& event, absl::Time now,
                          Effects* effects);
  absl::Status ReportFailure(const Sender& sender, const RankFailure& event, absl::Time now,
                             Effects* effects);
  absl::Status ReportPrepared(const Sender& sender, const EpochPrepared& event, absl::Time now,
                              Effects* effects);

 private:
  void ResendJob(const Sender& sender, const JobId& id, const Job& job, Effects* effects) const;
  // The job whose current epoch this is and whose rank is on the sender; null: ignore the event.
  absl::StatusOr<const Job*> CurrentJob(const Sender& sender, const JobId& job,
                                        Generation generation, Epoch epoch, Rank rank) const;
  // After ranks have reported whether they have trainers.
  void UpdateCompleted(const JobId& id, absl::Time now, Effects* effects);
  void ApplyVerdict(const JobId& id, const OrderVerdict& verdict, absl::Time now, Effects* effects);

  CoordinatorState* const state_;
  JobSaves* const saves_;
  EpochProtocol* const epochs_;
  OrphanAdopter* const orphans_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_WORKER_REPORTS_H_
