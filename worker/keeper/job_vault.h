// What a worker has a vault hold, so that its jobs outlive this daemon: their memory, how they were
// prepared last, and their executors, which the next daemon ends before it starts others.
//
//   owner ""                part "worker"        who this is
//   owner JOB/CREATION      part "job"           as it was prepared last; put last
//                           parts of JobRegions
//                           part "executor R"    a descriptor of its process; none: it is in a
//                                                trainer's, and the job cannot be taken over
//
// A vault that fails is told of in the log, once, and nothing outlives the daemon from then on.
// Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_JOB_VAULT_H_
#define TESSERA_WORKER_KEEPER_JOB_VAULT_H_

#include <cstdint>
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
    v1::Job job;
    JobDescriptors memory;
  };
  struct Held {
    std::optional<v1::VaultedWorker> worker;
    std::vector<HeldJob> jobs;
  };
  // What an earlier daemon of worker `worker_id` left: jobs whose ranks have had an epoch. Their
  // executors have ended. What cannot be taken over is dropped, and told of in the log.
  // Errors: those of VaultClient
  //         FailedPrecondition  it is of another worker, or of another version, and there are jobs
  absl::StatusOr<Held> TakeOver(const std::string& worker_id);

  void PutWorker(const v1::VaultedWorker& worker);
  // All of a new job.
  void PutJob(const v1::Job& job, const JobRegions& regions);
  // It was prepared again.
  void NoteJob(const v1::Job& job);
  // Its executor is this process, which this one has not waited for; 0: it is in a trainer's.
  void NoteExecutor(const std::string& job_id, int64_t creation, Rank rank, int pid);
  void Drop(const std::string& job_id, int64_t creation);

 private:
  void Check(const absl::Status& status);

  const std::shared_ptr<VaultClient> vault_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_VAULT_H_
