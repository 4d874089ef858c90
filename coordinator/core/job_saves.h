// The saves of jobs: the requested ones, and what workers report about all saves.
//
//   RequestSave ──► SendRequest ──► workers ──► ReportSave: begun, ended ──► EndSave ──► SendRequest: next
//
// The end of a save that cannot be journalled is kept, and NoteHeardSaves records it later.
// Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_JOB_SAVES_H_
#define TESSERA_COORDINATOR_CORE_JOB_SAVES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/events.h"

namespace tessera::coordinator {

class JobSaves {
 public:
  // `state` must outlive it.
  explicit JobSaves(CoordinatorState* state) : state_(state) {}

  // The changes that wait are durable, or are not: see Coordinator.
  void Accept();
  void Rollback() { noted_saves_ = 0; }

  // With the errors of the methods of Coordinator of these names.
  absl::StatusOr<SaveView> RequestSave(const RequestSaveEvent& event, absl::Time now,
                                       Effects* effects);
  absl::StatusOr<SaveView> CancelSave(const JobId& job, int64_t number, absl::Time now,
                                      Effects* effects);
  absl::StatusOr<SaveView> GetSave(const JobId& job, int64_t number) const;
  absl::StatusOr<std::vector<SaveView>> ListSaves(const JobId& job) const;
  // Only for a sender that Membership::Hear has accepted. Never fails.
  absl::Status ReportSave(const Sender& sender, const SaveReport& event, absl::Time now,
                          Effects* effects);

  // Tells workers which save is requested next, if the job ever had one.
  void SendRequest(const JobId& id, const std::set<WorkerId>& workers, Effects* effects) const;
  // Ends the current attempt to save, because its epoch ended for this reason.
  void EndSaveTry(const JobId& id, const std::string& reason, absl::Time now, Effects* effects);
  void EndPendingSaves(const JobId& id, const absl::Status& outcome, absl::Time now,
                       Effects* effects);
  void NoteHeardSaves(absl::Time now, Effects* effects);
  void WithdrawExpiredSaves(absl::Time now, Effects* effects);

 private:
  SaveView ViewSave(const JobId& id, const Job& job, const Save& save) const;
  std::string WhySaveWaits(const JobId& id, const Job& job, const Save& save) const;
  // Records the end of `save` and its effects on other saves, and announces the next request.
  void EndSave(const JobId& id, Save save, const absl::Status& outcome, absl::Time now,
               Effects* effects);
  void NoteSaveEnd(const SaveReport& report, absl::Time now, Effects* effects);

  CoordinatorState* const state_;
  // Ends of saves that are not durable yet. The first `noted_saves_` of them wait for Accept.
  std::vector<SaveReport> heard_saves_;
  size_t noted_saves_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_JOB_SAVES_H_
