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
// Thread-compatible: one caller at a time. `now` never goes back.
#ifndef TESSERA_COORDINATOR_CORE_COORDINATOR_H_
#define TESSERA_COORDINATOR_CORE_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/durable_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_runtime.h"
#include "coordinator/core/events.h"
#include "coordinator/core/job_placer.h"
#include "coordinator/core/orphans.h"
#include "coordinator/core/owner_limits.h"

namespace tessera::coordinator {

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  // Rebuilds the state from `records`. Each worker gets the full timeout, counted from `now`.
  // Errors: DataLoss  the records contradict each other
  static absl::StatusOr<Coordinator> Restore(const CoordinatorOptions& options,
                                             const std::vector<StateRecord>& records,
                                             absl::Time now);

  void Accept();
  void Rollback();
  // The cluster's id: empty until NameCluster, which is called once.
  const std::string& cluster() const { return state_.cluster().id; }
  void NameCluster(const std::string& id, Effects* effects);
  // Until a Tick at `until` no job is created and no epoch begins: workers may hold later ones.
  void TakeOverHeld(absl::Time until, int64_t first_save_number, Effects* effects);
  // Marks a job whose records cannot be read. Call it before the first event. The records are kept
  // and the job is shown, until the job's workers describe it or it is deleted.
  void Quarantine(const JobId& job, const std::string& reason) { unreadable_[job] = reason; }

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
  const MemberRegistry& members() const { return state_.members(); }
  Claims claims() const { return state_.ClaimedByOthers(JobId()); }
  // As in MemberRegistry, and also for lives that have not begun.
  Incarnation IncarnationOf(const WorkerId& worker, const std::string& key) const;
  absl::Status CheckKey(const WorkerId& worker, Incarnation incarnation,
                        const std::string& key) const;
  absl::Duration SilentFor(const WorkerId& worker, absl::Time now) const {
    return liveness_.SilentFor(worker, now);
  }
  // A stream of this worker begins. What the worker may have missed is sent again.
  // Errors: AlreadyExists as RegisterWorker; and here and below, as MemberRegistry::CheckCurrent.
  // The events below also: InvalidArgument  a rank or unit that the job lacks, or a rank that is
  // not on this worker.
  // Events of other epochs or generations, or of deleted jobs, are ignored. But a worker that holds
  // a deleted job, or a job of which it has no rank, is told to drop it. One that holds a job that
  // the journal does not know is asked to describe it.
  absl::Status Connect(const Sender& sender, absl::Time now, Effects* effects);
  // The worker's stream has ended. Its process may have ended too.
  void Disconnected(const WorkerId& worker) { away_.insert(worker); }
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

  // --- hand-over: coordinator_hand_over.cc ---
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

  // --- saves: coordinator_saves.cc ---
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

 private:
  void Put(StateRecord record, Effects* effects);
  JobView View(const JobId& id, const Job& job) const;
  // A job that only workers know, or whose records cannot be read; nullopt: no such job.
  std::optional<JobView> ViewOrphan(const JobId& id) const;
  // Errors: Unavailable  only workers know the job, or its records cannot be read (says which)
  absl::Status CheckKnown(const JobId& id) const;
  // Creates the runtime of the job's epoch if it is missing. Only for an accepted epoch.
  EpochRuntime& Runtime(const JobId& id, const Job& job);
  const EpochRuntime* FindRuntime(const JobId& id, const Job& job) const;

  // Errors: AlreadyExists  an older life of the worker is connected
  absl::Status CheckMayFollow(const WorkerId& worker) const;
  const Member* FindArrival(const WorkerId& worker, Incarnation incarnation) const;
  void BeginLife(const WorkerId& worker, Member member, absl::Time now, Effects* effects);
  // Checks the sender, records that it is alive, and readmits it if it was lost.
  absl::Status Hear(const Sender& sender, absl::Time now, Effects* effects);
  // The job whose current epoch this is and whose rank is on the sender; null: ignore the event.
  absl::StatusOr<const Job*> CurrentJob(const Sender& sender, const JobId& job, Creation creation,
                                        Epoch epoch, Rank rank) const;
  // The earlier request of this id, or null. Errors: AlreadyExists  it was another request
  absl::StatusOr<const Request*> FindReplay(const std::string& request_id, RequestKind kind,
                                            const JobId& job) const;
  // For a request, and for the job that it creates.
  int64_t NextSequence(absl::Time now) const;
  void RememberDeleted(const JobId& job, Creation creation, Effects* effects);
  absl::Status DeleteOrphan(const DeleteJobEvent& event, absl::Time now, Effects* effects);
  void RememberRequest(const std::string& request_id, Request request, Effects* effects);
  void HearOfHeldJob(const Sender& from, const JobProgress& job, absl::Time now, Effects* effects);
  // Whether workers hold a later epoch of the job than the journal has, or have begun its first.
  bool IsBehind(const JobId& id, const Job& job) const;
  // Where the ranks are, if the job can be taken over now. `why_not` says what is missing.
  std::optional<std::vector<RankPlacement>> PlacesOf(const HeldJob& held,
                                                     const Orphans::Holders& holders,
                                                     std::string* why_not) const;
  void Adopt(const Orphans::Key& key, absl::Time now, Effects* effects);
  void ForgetLostMembers(Effects* effects);
  void ResendOnConnect(const Sender& sender, Effects* effects) const;
  void ResendJob(const Sender& sender, const JobId& id, const Job& job, Effects* effects) const;
  void ApplyVerdict(const JobId& id, const OrderVerdict& verdict, absl::Time now, Effects* effects);
  void FailEpoch(const JobId& id, EpochFailure failure, absl::Time now, Effects* effects);

  // Fails the epochs that some worker has not prepared in time.
  void CheckPreparing(absl::Time now);
  JobPlacer Placer() const { return {&options_, &state_, &runtimes_, &avoided_, &orphans_}; }

  // The epoch protocol: takes the actions that the current state requires.
  void AdvanceAll(absl::Time now, Effects* effects);
  void Advance(const JobId& id, absl::Time now, Effects* effects);
  void OpenEpoch(const JobId& id, const std::string& reason, absl::Time now, Effects* effects);
  void BeginEpoch(const JobId& id, Effects* effects);
  void GiveUp(const JobId& id, const std::string& reason, absl::Time now, Effects* effects);
  void SendEpochOpened(const JobId& id, const std::vector<RankPlacement>& previous,
                       const EpochFailure& failure, Effects* effects) const;
  std::string StateReason(const JobId& id, const Job& job) const;
  void FlushStep(const JobId& id, Effects* effects);

  // Advances hand-overs whose deadline has passed, or whose taker is gone or took a step.
  void AdvanceHandOvers(absl::Time now, Effects* effects);
  void AdvanceHandOver(const JobId& id, absl::Time now, Effects* effects);
  void EndHandOver(const JobId& id, HandOver ended, absl::Time now, Effects* effects);
  void FinishHandOver(const JobId& id, absl::Time now, Effects* effects);
  static std::string DescribeHandOver(const HandOver& hand_over);

  SaveView ViewSave(const JobId& id, const Job& job, const Save& save) const;
  std::string WhySaveWaits(const JobId& id, const Job& job, const Save& save) const;
  // Tells workers which save is requested next, if the job ever had one.
  void SendWish(const JobId& id, const std::set<WorkerId>& workers, Effects* effects) const;
  // Records the end of `save` and its effects on other saves, and announces the next request.
  void EndSave(const JobId& id, Save save, const absl::Status& outcome, absl::Time now,
               Effects* effects);
  void NoteHeardSaves(absl::Time now, Effects* effects);
  void NoteSaveEnd(const SaveReport& report, absl::Time now, Effects* effects);
  // Ends the current attempt to save, because its epoch ended for this reason.
  void EndSaveTry(const JobId& id, const std::string& reason, absl::Time now, Effects* effects);
  void EndPendingSaves(const JobId& id, const absl::Status& outcome, absl::Time now,
                       Effects* effects);
  void WithdrawExpiredSaves(absl::Time now, Effects* effects);
  RestartPacer& PacerOf(const JobId& id);

  CoordinatorOptions options_;
  DurableState state_;
  std::vector<DurableState::Undo> undos_;  // For changes that wait for Accept or Rollback.
  Liveness liveness_;
  std::set<WorkerId> away_;  // No stream since they registered, or it has ended.
  // By worker: lives that are registered and have not begun.
  std::map<WorkerId, std::map<Incarnation, Member>> arrivals_;
  std::map<JobId, EpochRuntime> runtimes_;
  std::map<JobId, RestartPacer> pacers_;
  std::map<JobId, AvoidedWorkers> avoided_;
  std::optional<absl::Time> take_over_until_;
  Orphans orphans_;
  std::map<JobId, std::string> unreadable_;  // With the reason.
  std::set<JobId> replaced_;                 // Leave unreadable_ on Accept.
  // Ends of saves that are not durable yet. The first `noted_saves_` of them wait for Accept.
  std::vector<SaveReport> heard_saves_;
  size_t noted_saves_ = 0;
  OwnerLimits owner_limits_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_COORDINATOR_H_
