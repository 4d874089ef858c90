// The epoch protocol: opens or begins at most one epoch of a job per event.
//
//   a failure, a lost worker, ... ──► OpenEpoch ──► PrepareEpoch to the workers
//   every worker has prepared     ──► BeginEpoch ──► StartEpoch to the workers
//   shards are gone               ──► GiveUp: the job is lost
//
// Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_EPOCH_PROTOCOL_H_
#define TESSERA_COORDINATOR_CORE_EPOCH_PROTOCOL_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_runtime.h"
#include "coordinator/core/job_saves.h"

namespace tessera::coordinator {

class EpochProtocol {
 public:
  // Both must outlive it. The end of an epoch ends attempts to save.
  EpochProtocol(CoordinatorState* state, JobSaves* saves) : state_(state), saves_(saves) {}

  // Take the actions that the current state requires.
  void AdvanceAll(absl::Time now, Effects* effects);
  void Advance(const JobId& id, absl::Time now, Effects* effects);
  void OpenEpoch(const JobId& id, const std::string& reason, EpochCause cause, absl::Time now,
                 Effects* effects);
  void FailEpoch(const JobId& id, EpochFailure failure, absl::Time now, Effects* effects);
  // Whether orders that differ now may agree once all programs were started again: some trainers may
  // have been replaced, and be at other places of their programs than those that went on (ADR 91).
  // Once at a step; not journalled.
  bool RequireRestart(const JobId& id);
  // Fails the epochs that some worker has not prepared in time.
  void CheckPreparing(absl::Time now);
  // Records the steps that were committed since the last time.
  void FlushSteps(Effects* effects);
  void ForgetDeletedJobs();  // After CoordinatorState::Accept.

 private:
  void BeginEpoch(const JobId& id, Effects* effects);
  void GiveUp(const JobId& id, const std::string& reason, absl::Time now, Effects* effects);
  void SendEpochOpened(const JobId& id, const std::vector<RankPlacement>& previous,
                       const EpochFailure& failure, Effects* effects) const;
  void FlushStep(const JobId& id, Effects* effects);
  RestartPacer& PacerOf(const JobId& id);

  CoordinatorState* const state_;
  JobSaves* const saves_;
  std::map<JobId, RestartPacer> pacers_;
  std::map<JobId, Step> restarted_at_;  // The last committed step then.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EPOCH_PROTOCOL_H_
