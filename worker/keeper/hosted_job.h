// One job on this worker: its memory, its ranks' executors and attachments, its epoch.
//
// Each rank has a RankSupervisor: a thread that launches the rank's executor, reads its events and,
// when it died, launches the next one. A failure of any kind (an executor's error or death, a
// trainer's death outside of a save) ends the epoch. The memory is untouched by all of this.
//
//                  one per rank
//   HostedJob ──► RankSupervisor ──► ExecutorWatch     threads
//       │                │                 │
//       ▼                ▼                 ▼
//   JobParts: one lock, and what it guards
//     EpochMachine    the epoch and its phase; how it ends
//     ExecutorSlots   the ranks' executors
//     AttachTable     the ranks' trainers
//     SaveForwarder, PutForwarder
//
// Thread-safe. Events to the coordinator go to `emit`, which must not call back. The destructor
// kills the executors and joins the supervisors.
#ifndef TESSERA_WORKER_KEEPER_HOSTED_JOB_H_
#define TESSERA_WORKER_KEEPER_HOSTED_JOB_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "proto/coordinator.pb.h"
#include "proto/local.pb.h"
#include "proto/worker.pb.h"
#include "shm/fd_passing.h"
#include "worker/keeper/attach_table.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/job_parts.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/job_vault.h"
#include "worker/keeper/put_forwarder.h"
#include "worker/keeper/put_stage.h"
#include "worker/keeper/rank_supervisor.h"
#include "worker/keeper/save_counts.h"

namespace tessera {

// Of a rank, since this daemon holds the job.
struct RankCounts {
  int64_t executor_starts = 0;
  int64_t trainer_deaths = 0;
  SaveCounts saves;
};

class HostedJob {
 public:
  using Emit = JobContext::Emit;
  // How long an epoch waits for an executor in a trainer's process before it is given up. Below the
  // coordinator's prepare timeout, which would have it avoid this worker.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);

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
  void WantSave(const v1::RequestedSave& requested);  // Of whichever epoch.

  // --- What the coordinator must hear again after it, or the connection, was away. ---
  std::vector<v1::WorkerEvent> Unacknowledged() const;
  v1::JobProgress Progress() const;
  v1::HeldJob Describe() const;
  RankCounts Counts(Rank rank) const;

  // --- Attachments ---
  // Binds the rank to the trainer `peer`; see AttachRequest for the errors. If the previous trainer
  // left in the middle of a step, this ends the epoch, so that all ranks start that step again; so
  // does a trainer that hosts the rank's executor.
  absl::StatusOr<GivenRank> Attach(const v1::AttachRequest& request, const PacketPeer& peer,
                                   absl::Time now);
  // Both of the trainer with this attachment: see AttachTable.
  void Detach(Rank rank, Incarnation attachment, Leaving how);
  void Report(Rank rank, Incarnation attachment, const v1::Report& report);

  // --- Puts: see PutForwarder ---
  // Has the ranks vote for it, in this epoch and later ones, until it is decided or withdrawn. One
  // that was there before is as if withdrawn.
  void OfferPut(std::shared_ptr<const StagedPut> put);
  void WithdrawPut(uint64_t put);  // Also of one that is applied: then its file is let go.
  using PutProgress = PutForwarder::Progress;
  PutProgress ProgressOfPut(uint64_t put) const;

  void MarkDropped() { is_dropped_.store(true); }  // It ends for good: nothing takes it over.

  // Kills a rank's executor, as an operator or a test would; never a trainer.
  void KillExecutor(Rank rank);
  const JobRegions& regions() const { return context_.regions; }
  // Which of the jobs of this id it is.
  int64_t generation() const { return context_.generation; }
  const LocalRanks& local() const { return context_.local(); }
  bool has_begun() const;  // An epoch, ever.
  Epoch epoch() const;     // The one that was prepared last.

 private:
  HostedJob(const v1::Job& job, JobContext context);
  absl::Status StartSupervisors();
  // Ends the epoch that an earlier daemon was in. `trainers`: the attached ones, by rank.
  void EndEpochOfDaemonBefore(std::map<int, UniqueFd> trainers);

  const JobContext context_;
  std::atomic<bool> is_dropped_{false};
  JobParts parts_;                                            // Guarded by its own lock.
  std::vector<std::unique_ptr<RankSupervisor>> supervisors_;  // Filled before the job is shared.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_HOSTED_JOB_H_
