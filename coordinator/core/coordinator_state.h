// What the parts of the coordinator's core share: the durable state, with the changes that wait for
// the journal, and what workers reported that several parts need.
//
//   Put ──► durable() ──┬── Accept:   the changes stay; what was known of deleted jobs is forgotten
//                       └── Rollback: the changes are undone, in reverse order
//
// What only one part needs is a member of that part. Neither copyable nor movable, because the
// parts point to it. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_COORDINATOR_STATE_H_
#define TESSERA_COORDINATOR_CORE_COORDINATOR_STATE_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_runtime.h"
#include "coordinator/core/orphans.h"

namespace tessera::coordinator {

class CoordinatorState {
 public:
  explicit CoordinatorState(const CoordinatorOptions& options);
  CoordinatorState(const CoordinatorState&) = delete;
  CoordinatorState& operator=(const CoordinatorState&) = delete;

  // Rebuilds the state from `records`. Call it once, before anything else.
  // Errors: DataLoss  the records contradict each other
  absl::Status Replay(const std::vector<StateRecord>& records);

  // --- what survives a restart ---
  const DurableState& durable() const { return durable_; }
  const Job* FindJob(const JobId& job) const { return durable_.FindJob(job); }
  const std::map<JobId, Job>& jobs() const { return durable_.jobs(); }
  const MemberRegistry& members() const { return durable_.members(); }
  void Put(StateRecord record, Effects* effects);
  // Rollback calls `undo`, between the undos of the changes before and after this call.
  void OnRollback(std::function<void()> undo);
  bool Accept();  // Whether there were changes.
  void Rollback();

  // --- epochs ---
  // Creates the runtime of the job's epoch if it is missing. Only for an accepted epoch.
  EpochRuntime& Runtime(const JobId& id, const Job& job);
  const EpochRuntime* FindRuntime(const JobId& id, const Job& job) const;
  const std::map<JobId, EpochRuntime>& runtimes() const { return runtimes_; }

  // --- jobs that the journal does not know, or knows only in part ---
  // Whether workers hold a later epoch of the job than the journal has, or have begun its first.
  bool IsBehind(const JobId& id, const Job& job) const;
  // Those of its orphans' holders that are believed. Any worker may claim any job, so one that has
  // no rank of a job that the journal knows has to describe it first, which takes the job's key.
  Orphans::Holders BelievedHolders(const Orphans::Key& key) const;
  // Until a call of EndTakeOver at `until` no job is created and no epoch begins.
  void TakeOverUntil(absl::Time until) { take_over_until_ = until; }
  // Ends it if the time is over. The coordinator paused for `pause`, during which no worker could
  // report.
  void EndTakeOver(absl::Time now, absl::Duration pause, Effects* effects);
  bool takes_over() const { return take_over_until_.has_value(); }
  // Jobs whose records cannot be read, with the reason.
  void Quarantine(const JobId& job, const std::string& reason) { unreadable_[job] = reason; }
  const std::map<JobId, std::string>& unreadable() const { return unreadable_; }
  // On Accept the job is no longer unreadable.
  void ReplaceUnreadable(const JobId& job) { replaced_.insert(job); }

  const CoordinatorOptions options;
  std::map<JobId, AvoidedWorkers> avoided;
  Orphans orphans;

 private:
  DurableState durable_;
  std::vector<DurableState::Undo> undos_;  // For changes that wait for Accept or Rollback.
  std::map<JobId, EpochRuntime> runtimes_;
  std::optional<absl::Time> take_over_until_;
  std::map<JobId, std::string> unreadable_;  // With the reason.
  std::set<JobId> replaced_;                 // Leave unreadable_ on Accept.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_COORDINATOR_STATE_H_
