// The epochs of a hosted job on this worker: the phase of the current one (epoch_phase.h has its
// transitions), what the coordinator commands about it, and how it ends.
//
// A failure of any kind ends the epoch: all local ranks are aborted at once, the coordinator is
// told, and the job waits for the coordinator to prepare the next epoch.
//
// Thread-compatible; guarded by the job's lock. Time is read from the steady clock.
#ifndef TESSERA_WORKER_KEEPER_EPOCH_MACHINE_H_
#define TESSERA_WORKER_KEEPER_EPOCH_MACHINE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "proto/coordinator.pb.h"
#include "proto/worker.pb.h"
#include "worker/keeper/epoch_phase.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_context.h"

namespace tessera {

class EpochMachine {
 public:
  // `context` and `executors` outlive it.
  EpochMachine(const JobContext* context, const v1::Job& job, ExecutorSlots* executors)
      : context_(context), executors_(executors), job_(job) {}

  // --- What the coordinator commands. A command of an epoch that is past is ignored. ---
  void Prepare(const v1::PrepareEpoch& prepare);
  void Start(const v1::StartEpoch& start);
  void Release(const v1::OrderRelease& release);
  void Mismatch(const v1::OrderMismatch& mismatch);

  // --- How an epoch ends ---
  // `code`: what the trainers of all ranks get. Nothing where the phase has no such event.
  void Fail(Rank rank, const std::string& reason, EpochEvent event = EpochEvent::kFailure,
            absl::StatusCode code = absl::StatusCode::kAborted);
  // On the trainer's page in place of the executor, since no other process writes there now, and at
  // the coordinator.
  void EndOfRank(Rank rank, const std::string& reason, EpochEvent event);
  // The one that an earlier daemon was in.
  void EndThatOfDaemonBefore();
  // The job ends: the epoch is aborted, and no executor follows the one that a rank has.
  void Close(const absl::Status& reason);

  // --- How one comes to be prepared ---
  // Has the executor leave its epoch and make ready for the one that is being prepared.
  void PrepareRank(ExecutorSlot& slot) const;
  // Tells the coordinator once all ranks are ready and quiet.
  void MaybePrepared();

  // As of the last Prepare.
  const v1::Job& job() const { return job_; }
  Epoch epoch() const { return epoch_; }
  EpochPhase phase() const { return phase_; }
  absl::Time preparing_since() const { return preparing_since_; }
  bool is_closed() const { return is_closed_; }
  // What the coordinator must hear again after it, or the connection, was away; unset: nothing.
  std::optional<v1::WorkerEvent> Unacknowledged() const;

 private:
  // Ends all that runs in epochs up to `ended`; each executor answers once it is quiet.
  // `prepare`: for the epoch that follows.
  void AbortAll(Epoch ended, const absl::Status& reason, bool prepare = false);
  // What was decided of the step that the epoch resumes from, where this worker does not know it.
  absl::Status LearnDecision(const v1::StartEpoch& start) const;
  v1::WorkerEvent PreparedEvent() const;

  const JobContext* const context_;
  ExecutorSlots* const executors_;
  v1::Job job_;
  EpochPhase phase_ = EpochPhase::kNone;
  Epoch epoch_;
  absl::Time preparing_since_;
  v1::WorkerEvent failure_;  // Of this epoch; unset: none.
  bool is_closed_ = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EPOCH_MACHINE_H_
