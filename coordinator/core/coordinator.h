// The coordinator's logic: f(state, event, now) -> effects. No threads, sockets, files or clocks.
//
//   event ──► handler ──► Effects{records, commands, changed jobs}
//                            │ records made durable     ──► Accept(), send the commands
//                            └ records could not be     ──► Rollback(), refuse the event
//
// The caller of a handler must call Accept or Rollback before it calls the next handler. Rollback
// restores the durable state. What was only heard (a failure, an answer) is kept, and the next Tick
// acts on it again. A handler that returned an error is always rolled back.
//
// The handlers are in parts. A part uses only parts to its right, and all of them use the state:
//
//   JobRequests ──► Membership ───────┐
//        └────────► OrphanAdopter ────┼──► EpochProtocol ──► JobSaves ──► CoordinatorState
//   WorkerReports ──────┘             │
//   HandOverProtocol ─────────────────┘          RankWatch ──────────────► CoordinatorState
//
// Movable; one that was moved from may only be assigned to or destroyed. Thread-compatible: one
// caller at a time. `now` never goes back.
#ifndef TESSERA_COORDINATOR_CORE_COORDINATOR_H_
#define TESSERA_COORDINATOR_CORE_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/events.h"
#include "coordinator/core/hand_over_state.h"
#include "coordinator/core/job.h"
#include "coordinator/core/member_registry.h"
#include "coordinator/core/rank_assigner.h"
#include "coordinator/core/records.h"
#include "coordinator/core/save_log.h"

namespace tessera::coordinator {

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);
  Coordinator(Coordinator&& other) noexcept;
  Coordinator& operator=(Coordinator&& other) noexcept;
  ~Coordinator();

  // Rebuilds the state from `records`. Each worker gets the full timeout, counted from `now`.
  // Errors: DataLoss  the records contradict each other
  static absl::StatusOr<Coordinator> Restore(const CoordinatorOptions& options,
                                             const std::vector<StateRecord>& records,
                                             absl::Time now);

  void Accept();
  void Rollback();
  // The cluster's id: empty until NameCluster, which is called once.
  const std::string& cluster() const;
  void NameCluster(const std::string& id, Effects* effects);
  // Until a Tick at `until` no job is created and no epoch begins: workers may hold later ones. A
  // coordinator that is restored before that calls it again.
  void TakeOverHeld(absl::Time until, int64_t first_save_number, Effects* effects);
  bool is_taking_over() const;  // As the records say.
  // Marks a job whose records cannot be read. Call it before the first event. The records are kept
  // and the job is shown, until the job's workers describe it or it is deleted.
  void Quarantine(const JobId& job, const std::string& reason);

  // --- jobs ---
  // Errors: InvalidArgument    the job of this id has another spec (names both ranks)
  //         AlreadyExists      the request id was used for another request
  //         PermissionDenied   the job belongs to another owner
  //         NotFound           this request created the job, which was deleted since
  //         ResourceExhausted  too many jobs, or too many bytes of models (owner_limits.h)
  //         Unavailable        the coordinator is still taking over jobs from workers
  absl::StatusOr<JobView> CreateJob(const CreateJobEvent& event, absl::Time now, Effects* effects);
  // Errors of both: NotFound. DeleteJob also: AlreadyExists, PermissionDenied, as above.
  absl::Status DeleteJob(const DeleteJobEvent& event, absl::Time now, Effects* effects);
  absl::StatusOr<JobView> GetJob(const JobId& job) const;
  // At most `max_jobs` jobs whose ids follow `after`, in the order of their ids.
  std::vector<JobView> ListJobs(const JobId& after = JobId(), size_t max_jobs = SIZE_MAX) const;

  // --- membership ---
  // Errors: FailedPrecondition, InvalidArgument, PermissionDenied  as MemberRegistry::CheckRegister
  //         ResourceExhausted  too many workers
  //         AlreadyExists      an older incarnation is connected: this is a second worker of its
  //                            name, not its restart
  // A restarted worker's new life begins with its first stream, not here: the registration may be
  // a late one, from a process that has ended since.
  absl::Status RegisterWorker(const WorkerId& worker, const Member& member, absl::Time now,
                              Effects* effects);
  const MemberRegistry& members() const;
  Claims claims() const;
  // As in MemberRegistry, and also for lives that have not begun.
  Incarnation IncarnationOf(const WorkerId& worker, const std::string& key) const;
  absl::Status CheckKey(const WorkerId& worker, Incarnation incarnation,
                        const std::string& key) const;
  absl::Duration SilentFor(const WorkerId& worker, absl::Time now) const;
  // A stream of this worker begins. What the worker may have missed is sent again.
  // Errors: AlreadyExists as RegisterWorker; and here and below, as MemberRegistry::CheckCurrent.
  // The events below also: InvalidArgument  a rank or unit that the job lacks, or a rank that is
  // not on this worker.
  // Events of other epochs or generations, or of deleted jobs, are ignored. But a worker that holds
  // a deleted job, or a job of which it has no rank, is told to drop it. One that holds a job that
  // the journal does not know is asked to describe it.
  absl::Status Connect(const Sender& sender, absl::Time now, Effects* effects);
  // The worker's stream has ended. Its process may have ended too.
  void Disconnected(const WorkerId& worker);
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
  // A worker describes a job that the journal does not know, or knows in an older epoch. Once all
  // of the job's workers have described it, it continues from what they hold.
  absl::Status ReportHeld(const Sender& sender, const HeldJob& event, absl::Time now,
                          Effects* effects);

  // --- hand-over ---
  // One rank offers. Once all ranks of the epoch have offered the same step, the hand-over is
  // pending. To repeat an offer of a pending hand-over changes nothing.
  // Errors: NotFound; Aborted   the epoch is not current
  //         FailedPrecondition  the generation is not current, or another rank offered another step
  //         ResourceExhausted   the trainers' states are too large together
  absl::Status OfferHandOver(const HandOverOffer& offer, absl::Time now, Effects* effects);
  // No effect if the hand-over is pending by now, or the rank has offered again since.
  void WithdrawOffer(const HandOverOffer& offer);
  // Errors: NotFound; FailedPrecondition  none is pending, or it is accepted (names the taker)
  absl::Status CancelHandOver(const JobId& job, const std::string& reason, absl::Time now,
                              Effects* effects);
  // One rank of a taker. Once all ranks of its epoch say the same, the next phase is reached.
  // Errors: NotFound; Aborted   the taker's epoch is not current, or no frozen epoch has begun
  //         FailedPrecondition  not pending, another job's, or the taker's generation is stale
  absl::Status TakeOverJob(const TakeOver& event, absl::Time now, Effects* effects);

  // --- saves ---
  // Errors: as Checkpoints in proto/saves.proto, except those about a save's form.
  absl::StatusOr<SaveView> RequestSave(const RequestSaveEvent& event, absl::Time now,
                                       Effects* effects);
  absl::StatusOr<SaveView> CancelSave(const JobId& job, int64_t number, absl::Time now,
                                      Effects* effects);
  absl::StatusOr<SaveView> GetSave(const JobId& job, int64_t number) const;  // Errors: NotFound
  // The pending ones by number, then the ended ones, newest first. Errors: NotFound
  absl::StatusOr<std::vector<SaveView>> ListSaves(const JobId& job) const;
  // Errors: as the events above. An end that cannot be journalled is recorded by a later Tick.
  absl::Status ReportSave(const Sender& sender, const SaveReport& event, absl::Time now,
                          Effects* effects);

  // Does what depends on time: lost workers, workers that do not prepare an epoch, delayed starts
  // of epochs, steps to make durable. Call it several times per worker timeout.
  void Tick(absl::Time now, Effects* effects);
  // Says which ranks of running jobs hold the others up. Call it after each Tick. It has no records,
  // so there is nothing to roll back; an epoch that it fails ends with the next Tick.
  void WatchRanks(absl::Time now, Effects* effects);

 private:
  struct Parts;

  // Behind a pointer, so that they keep their places when the coordinator is moved.
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_COORDINATOR_H_
