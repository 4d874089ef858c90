// All jobs of one worker. Routes the coordinator's commands and the trainers' attachments to them.
// For each job id it holds at most one generation, and ignores commands for another
// one. Preparing a later generation drops the earlier one with all its memory, if that was deleted
// or has no values yet; else the epoch fails, and the held one stays.
// Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_KEEPER_H_
#define TESSERA_WORKER_KEEPER_KEEPER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/keeper/frozen_state.h"
#include "worker/keeper/hosted_job.h"
#include "worker/keeper/state_snapshot.h"

namespace tessera {

// A trainer of a rank; kept by the holder of its socket.
struct AttachedTrainer {
  std::string job_id;
  int64_t generation = 0;
  Rank rank;
  Incarnation attachment;
  bool hosts_executor = false;
  GivenRank given;
};

class Keeper {
 public:
  // `launcher`, and `device_memory`, which jobs are on if it is not null, outlive the keeper; so do
  // `budget`, of host memory, null: as much as there is; and `vault`, null: jobs end with this
  // process. `emit` is called from many threads and must not call back. `data_host` is as of
  // WorkerServer::Options.
  Keeper(std::string worker_id, std::string data_host, ExecutorLauncher* launcher,
         HostedJob::Emit emit, DeviceMemory* device_memory = nullptr,
         MemoryBudget* budget = nullptr, JobVault* vault = nullptr)
      : worker_id_(std::move(worker_id)),
        data_host_(std::move(data_host)),
        launcher_(launcher),
        emit_(std::move(emit)),
        device_memory_(device_memory),
        budget_(budget),
        vault_(vault) {}
  // Takes a job over that an earlier daemon left, before all else. One that cannot be is dropped,
  // and told of in the log.
  void TakeOver(JobVault::HeldJob held);

  void HandleCommand(const v1::CoordinatorCommand& command);
  // Everything the coordinator must hear when a connection to it begins: progress first.
  std::vector<v1::WorkerEvent> OnConnected() const;
  v1::Heartbeat Progress() const;
  bool holds_jobs() const {
    absl::MutexLock lock(&mu_);
    return !jobs_.empty();
  }

  // `peer`: the caller. Errors: see AttachRequest in proto/local.proto; with a retry (WithRetry).
  absl::StatusOr<AttachedTrainer> Attach(const v1::AttachRequest& request, const PacketPeer& peer);
  // Both do nothing where the job is gone.
  void Detach(const AttachedTrainer& trainer, Leaving how);
  void Report(const AttachedTrainer& trainer, const v1::Report& report);

  std::vector<std::shared_ptr<HostedJob>> Jobs() const;  // In the order of their ids.
  // Null where there is no such job.
  std::shared_ptr<HostedJob> Find(const std::string& job_id) const;
  // Of this generation of the job. Errors: Unavailable  it is not held here; as
  // StateSnapshot::Create.
  absl::StatusOr<std::unique_ptr<StateSnapshot>> SnapshotState(
      const std::string& job_id, int64_t generation, const StateSnapshot::Request& request) const;
  // Likewise. Holding it keeps the memory of a job that was deleted.
  // Errors: Unavailable  it is not held here.
  absl::StatusOr<std::shared_ptr<HostedJob>> FindForPut(const std::string& job_id,
                                                        int64_t generation) const;
  // The same of a job that is handed over. Errors: as FrozenState::Create too.
  absl::StatusOr<std::unique_ptr<FrozenState>> FrozenStateOf(const std::string& job_id,
                                                             int64_t generation,
                                                             int64_t step) const;
  // Ends all jobs.
  void Shutdown();

 private:
  void Prepare(const v1::PrepareEpoch& prepare);
  void Start(const v1::StartEpoch& start);
  void Describe(const v1::DescribeJob& describe) const;
  // What is held of an earlier generation makes room for `prepare`.
  // Errors: FailedPrecondition  it has values, and nobody deleted it
  absl::Status MakeRoom(const v1::PrepareEpoch& prepare);
  // Ends what is held of generations up to this one.
  void Drop(const std::string& job_id, int64_t generation);
  // Null where no job of this id, or another generation of it, is held.
  std::shared_ptr<HostedJob> Find(const std::string& job_id, int64_t generation) const;
  void ReportFailure(const std::string& job_id, int64_t generation, int64_t epoch,
                     const std::string& reason) const;

  const std::string worker_id_;
  const std::string data_host_;
  ExecutorLauncher* const launcher_;
  const HostedJob::Emit emit_;
  DeviceMemory* const device_memory_;
  MemoryBudget* const budget_;
  JobVault* const vault_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<HostedJob>> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_KEEPER_H_
