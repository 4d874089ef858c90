// One job on this worker: its memory, its ranks' executors and attachments, its epoch.
//
// Each rank has a supervisor thread that launches the rank's executor, reads its events and, when
// it died, launches the next one; with growing delays if they end before they are ready. A failure
// of any kind (an executor's error or death, a trainer's death) ends the epoch: all local ranks are
// aborted at once, the coordinator is told, and the job waits for the coordinator to prepare the
// next epoch. The memory is untouched by all of this.
//
// A trainer may host its rank's executor: the supervisor then uses that one instead of launching
// one, until it ends, for whatever reason. Only its own process can kill it, and while it may still
// write to the rank's memory no other one is launched.
//
// If no process can map another's GPU memory, none is ever launched: the rank waits for a trainer
// that hosts its executor.
//
// Thread-safe. Events to the coordinator go to `emit`, which must not call back. The destructor
// kills the executors and joins the supervisors.
#ifndef TESSERA_WORKER_KEEPER_HOSTED_JOB_H_
#define TESSERA_WORKER_KEEPER_HOSTED_JOB_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "proto/coordinator.pb.h"
#include "proto/executor.pb.h"
#include "proto/local.pb.h"
#include "proto/worker.pb.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/ended_saves.h"
#include "worker/keeper/epoch_phase.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_put.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/job_vault.h"
#include "worker/keeper/put_stage.h"
#include "worker/memory/fd_passing.h"

namespace tessera {

class HostedJob {
 public:
  using Emit = std::function<void(const v1::WorkerEvent&)>;
  // How long an epoch waits for an executor in a trainer's process before it is given up. Below the
  // coordinator's prepare timeout, which would have it avoid this worker.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
  // The patience of Standstill with executors of the worker's own, which are killed then; and how
  // long one may take to die of that. At most the answer timeout.
  static constexpr absl::Duration kStandstill = absl::Seconds(5);

  // `launcher`, and `device_memory`, `budget` and `vault` if there are any, outlive the job;
  // `data_host` is as of WorkerServer::Options. Errors: as JobRegions::Create; ResourceExhausted no
  // thread.
  static absl::StatusOr<std::unique_ptr<HostedJob>> Create(
      const v1::Job& job, const LocalRanks& local, const std::string& data_host,
      ExecutorLauncher* launcher, Emit emit, DeviceMemory* device_memory = nullptr,
      absl::Duration answer_timeout = kAnswerTimeout, MemoryBudget* budget = nullptr,
      JobVault* vault = nullptr);
  // One whose daemon has ended, from its memory. Its epoch is over. Errors: as JobRegions::Restore
  static absl::StatusOr<std::unique_ptr<HostedJob>> Restore(JobVault::HeldJob held,
                                                            const LocalRanks& local,
                                                            const std::string& data_host,
                                                            ExecutorLauncher* launcher, Emit emit,
                                                            MemoryBudget* budget, JobVault* vault);
  ~HostedJob();

  // --- What the coordinator commands. A command of an epoch that is past is ignored. ---
  void Prepare(const v1::PrepareEpoch& prepare);
  void Start(const v1::StartEpoch& start);
  void Release(const v1::OrderRelease& release);
  void Mismatch(const v1::OrderMismatch& mismatch);
  void WantSave(const v1::SaveWish& wish);  // Of whichever epoch.

  // --- What the coordinator must hear again after it, or the connection, was away. ---
  std::vector<v1::WorkerEvent> Unacknowledged() const;
  v1::JobProgress Progress() const;
  v1::HeldJob Describe() const;

  // --- Attachments ---
  // Binds the rank to the trainer `peer`; see AttachRequest for the errors. If the previous trainer
  // left in the middle of a step, this ends the epoch, so that all ranks start that step again; so
  // does a trainer that hosts the rank's executor.
  absl::StatusOr<GivenRank> Attach(const v1::AttachRequest& request, const PacketPeer& peer,
                                   absl::Time now);
  // The trainer left; `clean` means that it said so.
  void Detach(Rank rank, Incarnation attachment, bool clean);

  // --- Puts: put_forwarder.cc ---
  // Has the ranks vote for it, in this epoch and later ones, until it is decided or withdrawn. One
  // that was there before is as if withdrawn.
  void OfferPut(std::shared_ptr<const StagedPut> put);
  void WithdrawPut(uint64_t put);  // Also of one that is applied: then its file is let go.
  struct PutProgress {
    std::optional<DecidedPut> decided;  // Known here, that is.
    bool is_applied = false;            // By all of this worker's ranks.
    bool is_over = false;               // None of them votes for it any more.
    std::string failure;                // Why no rank can take it; else empty.
  };
  PutProgress ProgressOfPut(uint64_t put) const;

  void MarkDropped() { is_dropped_.store(true); }  // It ends for good: nothing takes it over.

  // Kills a rank's executor, as an operator or a test would; never a trainer.
  void KillExecutor(Rank rank);
  const JobRegions& regions() const { return regions_; }
  // Which of the jobs of this id it is.
  int64_t creation() const { return creation_; }
  const LocalRanks& local() const { return regions_.local(); }
  bool has_begun() const;  // An epoch, ever.
  Epoch epoch() const;     // The one that was prepared last.

 private:
  HostedJob(const v1::Job& job, JobRegions regions, std::string data_host,
            ExecutorLauncher* launcher, Emit emit, absl::Duration answer_timeout, JobVault* vault,
            std::string owner);
  absl::Status StartSupervisors();
  // Ends the epoch that an earlier daemon was in. `trainers`: the attached ones, by rank.
  void EndEpochOfDaemonBefore(std::map<int, UniqueFd> trainers);
  // Of a rank of this worker.
  HostedRank& SlotOf(Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ranks_[rank.value() - local().first()];
  }
  RankRecord& RecordOf(Rank rank) const {  // Survives executors.
    return regions_.group()->ranks[rank.value() - local().first()];
  }
  struct ExecutorEnd {
    std::string how;
    bool was_ready = false;
    bool was_hosted = false;
    bool left_its_epoch = false;
  };
  void Supervise(Rank rank);
  // Returns the socket to read. Errors: Cancelled the job ends; as Launch and
  // CreatePacketSocketPair.
  absl::StatusOr<int> LaunchExecutor(Rank rank);
  void ReadEvents(Rank rank, int socket);
  // Until there is something to read of a launched executor. One that stands still is killed.
  void AwaitLaunched(Rank rank, int socket);
  // Waits for its end. Tells trainer and coordinator if that takes long.
  std::string AwaitEnd(Rank rank, RunningExecutor* executor);
  // Whether this trainer may have the rank, regardless of who is attached.
  absl::Status CheckTrainer(const v1::AttachRequest& request, const PacketPeer& peer) const;
  absl::Status CheckIsFreeLocked(const HostedRank& slot, const v1::AttachRequest& request,
                                 absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch in which another trainer of the rank left something that only it could finish.
  void EndWhatWasLeftLocked(HostedRank& slot, const v1::AttachRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Executors in trainers' processes: executor_watch.cc.
  // `socket`: the worker's end. Ends the epoch.
  void TakeOfferLocked(HostedRank& slot, Rank rank, UniqueFd socket, int pid,
                       v1::AttachResponse* response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool needs_hosts() const { return !regions_.why_not_shared().empty(); }  // None is launched.
  std::string WhyItNeedsHostLocked(Rank rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until there is one, or the job ends. Tells the coordinator if it keeps an epoch waiting.
  void AwaitOffer(Rank rank);
  // Reads to the very end, since that is when it can write no more.
  void ReadHostedEvents(Rank rank, int socket);
  // False: it is not waited for any more. Tells the coordinator if it keeps an epoch waiting.
  bool AwaitHosted(Rank rank, int socket);
  void EndExecutorLocked(HostedRank& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HostIsAttachedLocked(const HostedRank& slot, Incarnation host) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slot.attach_state == AttachState::kAttached && slot.attachment == host;
  }
  // Whether some trainer hosts its executor, or is about to, or must.
  bool HasHostsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEvent(Rank rank, const v1::ExecutorEvent& event);
  ExecutorEnd ReapExecutor(Rank rank);
  // Ends the epoch on the trainer's page in place of the executor, since nobody else writes there
  // now, and at the coordinator.
  void EndEpochOfRankLocked(Rank rank, const std::string& reason, EpochEvent event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `failed_starts`: in a row, of this rank.
  void OnExecutorEndLocked(Rank rank, const std::string& how, int failed_starts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `code`: what the trainers of all ranks get.
  void FailLocked(Rank rank, const std::string& reason, EpochEvent event = EpochEvent::kFailure,
                  absl::StatusCode code = absl::StatusCode::kAborted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends all that runs in epochs up to `ended`; each executor answers once it is quiet.
  // `prepare`: for the epoch that follows.
  void AbortAllLocked(Epoch ended, const absl::Status& reason, bool prepare = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the executor leave its epoch and make ready for the one that is being prepared.
  void PrepareRankLocked(HostedRank& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MaybePreparedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendLocked(HostedRank& slot, const v1::ExecutorCommand& command,
                  absl::Span<const int> fds = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GivePutLocked(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // If there is one.
  void DropPutLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPutHolderEnded(Rank rank);  // The executor of this rank.
  void OnPutGoneLocked(Rank rank, const v1::ExecutorPutGone& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What was decided of the step that the epoch resumes from, where this worker does not know it.
  absl::Status LearnDecision(const v1::StartEpoch& start) const;
  v1::WorkerEvent PreparedEventLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Saves of checkpoints: save_forwarder.cc.
  void SendWishLocked(HostedRank& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnSaveReportLocked(Rank rank, v1::SaveReport report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The rank's executor has ended, perhaps in the middle of one.
  void EndOpenSaveLocked(Rank rank, const std::string& how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string job_id_;
  const int64_t creation_;
  const JobRegions regions_;
  const std::string data_host_;
  ExecutorLauncher* const launcher_;
  const Emit emit_;
  const absl::Duration answer_timeout_;
  JobVault* const vault_;  // Null: nothing outlives this process.
  const std::string vault_owner_;
  std::atomic<bool> is_dropped_{false};
  std::vector<std::thread> supervisors_;

  mutable absl::Mutex mu_;
  v1::Job job_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  EpochPhase phase_ ABSL_GUARDED_BY(mu_) = EpochPhase::kNone;
  Epoch epoch_ ABSL_GUARDED_BY(mu_);
  absl::Time preparing_since_ ABSL_GUARDED_BY(mu_);
  v1::WorkerEvent failure_ ABSL_GUARDED_BY(mu_);  // Of this epoch; unset: none.
  int64_t next_attachment_ ABSL_GUARDED_BY(mu_) = 1;
  v1::SaveWish wish_ ABSL_GUARDED_BY(mu_);
  EndedSaves ended_saves_ ABSL_GUARDED_BY(mu_);
  std::vector<HostedRank> ranks_ ABSL_GUARDED_BY(mu_);  // This worker's.
  JobPut put_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const StagedPut> staged_put_ ABSL_GUARDED_BY(mu_);  // Null: none is offered.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_HOSTED_JOB_H_
