// How one job continues as another, and which of them decides the next step: see hand_over.h.
// Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_HAND_OVER_PROTOCOL_H_
#define TESSERA_COORDINATOR_CORE_HAND_OVER_PROTOCOL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/hand_over_state.h"
#include "coordinator/core/job_saves.h"

namespace tessera::coordinator {

class HandOverProtocol {
 public:
  // All must outlive it.
  HandOverProtocol(CoordinatorState* state, JobSaves* saves, EpochProtocol* epochs)
      : state_(state), saves_(saves), epochs_(epochs) {}

  // With the errors of the methods of Coordinator of these names.
  absl::Status OfferHandOver(const HandOverOffer& offer, absl::Time now, Effects* effects);
  void WithdrawOffer(const HandOverOffer& offer);
  absl::Status CancelHandOver(const JobId& job, const std::string& reason, absl::Time now,
                              Effects* effects);
  absl::Status TakeOverJob(const TakeOver& event, absl::Time now, Effects* effects);

  // Advances hand-overs whose deadline has passed, or whose taker is gone or took a step.
  void AdvanceHandOvers(absl::Time now, Effects* effects);

 private:
  void AdvanceHandOver(const JobId& id, absl::Time now, Effects* effects);
  void EndHandOver(const JobId& id, HandOver ended, absl::Time now, Effects* effects);
  void FinishHandOver(const JobId& id, absl::Time now, Effects* effects);

  CoordinatorState* const state_;
  JobSaves* const saves_;
  EpochProtocol* const epochs_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_HAND_OVER_PROTOCOL_H_
