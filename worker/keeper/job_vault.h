// What a worker has a vault hold, so that its jobs outlive this daemon: their memory, how they were
// prepared last, and their executors, which the next daemon ends before it starts others.
//
//   owner ""                part "worker"        this worker
//   owner JOB/.../...       part "job"           as it was prepared last; put last
//   (one memory of a job)   parts of JobRegions
//                           part "executor R"    a descriptor of its process; none: it is in a
//                                                trainer's, and the job cannot be taken over
//                           part "trainer R"     a descriptor of the process that is attached
//
// A vault that fails is told of in the log, once, and nothing outlives the daemon from then on.
// Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_JOB_VAULT_H_
#define TESSERA_WORKER_KEEPER_JOB_VAULT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "proto/coordinator.pb.h"
#include "proto/vault.pb.h"
#include "worker/keeper/job_regions.h"
#include "worker/vault/vault_client.h"

namespace tessera {

class JobVault {
 public:
  explicit JobVault(std::shared_ptr<VaultClient> vault) : vault_(std::move(vault)) {}

  struct HeldJob {
    std::string owner;
    v1::Job job;
    JobDescriptors memory;
    std::map<int, UniqueFd> trainers;  // By rank: a descriptor of the process that was attached.
  };
  struct Held {
    std::optional<v1::VaultedWorker> worker;
    std::vector<HeldJob> jobs;
  };
  // What an earlier daemon of worker `worker_id` left: jobs whose ranks have had an epoch. Their
  // executors have ended. What cannot be taken over is dropped, and told of in the log.
  // Errors: those of VaultClient
  //         FailedPrecondition  there are jobs, of another worker, version or number of devices
  absl::StatusOr<Held> TakeOver(const std::string& worker_id, int num_devices);

  void PutWorker(const v1::VaultedWorker& worker);
  // All of a new job's memory. Its owner, to name it by from now on.
  std::string PutJob(const v1::Job& job, const JobRegions& regions);
  // It was prepared again.
  void NoteJob(const std::string& owner, const v1::Job& job);
  // Processes of the rank; 0: there is none here. An executor's, which this process has not waited
  // for: 0 where it is in a trainer's.
  void NoteExecutor(const std::string& owner, Rank rank, int pid);
  void NoteTrainer(const std::string& owner, Rank rank, int pid);
  void Drop(const std::string& owner);

 private:
  void Check(const absl::Status& status);
  void NoteProcess(const std::string& owner, const std::string& part, int pid);

  const std::shared_ptr<VaultClient> vault_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_VAULT_H_
