// What all parts of a hosted job know: its names, its memory, and the objects that they work with.
// A plain value that is constant once the first part has it, so reads need no lock.
#ifndef TESSERA_WORKER_KEEPER_JOB_CONTEXT_H_
#define TESSERA_WORKER_KEEPER_JOB_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/ids.h"
#include "proto/worker.pb.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/job_vault.h"

namespace tessera {

struct JobContext {
  // Takes events to the coordinator. Must not call back.
  using Emit = std::function<void(const v1::WorkerEvent&)>;

  std::string job_id;
  int64_t generation = 0;
  JobRegions regions;
  std::string data_host;  // As of WorkerServer::Options.
  ExecutorLauncher* launcher = nullptr;
  Emit emit;
  absl::Duration answer_timeout;  // As HostedJob::kAnswerTimeout.
  JobVault* vault = nullptr;      // Null: nothing outlives this process.
  std::string vault_owner;

  const LocalRanks& local() const { return regions.local(); }
  // Of a rank of this worker. Survives executors.
  RankRecord& RecordOf(Rank rank) const {
    return regions.group()->ranks[rank.value() - local().first()];
  }
  // No executor is launched: each must be in its rank's trainer.
  bool needs_hosts() const { return !regions.why_not_shared().empty(); }
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_CONTEXT_H_
