// Supervises the executors of one rank in a thread: launches one, has it watched, and when it has
// ended launches the next one; with growing delays if they end before they are ready.
//
//   AwaitOffer ──► Launch ──► ExecutorWatch ──► Reap ──► the epoch ends ──► delay ──► again
//   (if a trainer must host)
//
// A trainer may host its rank's executor: the supervisor then uses that one instead of launching
// one, until it ends, for whatever reason. Only its own process can kill it, and while it may still
// write to the rank's memory no other one is launched.
//
// If no process can map another's GPU memory, none is ever launched: the rank waits for a trainer
// that hosts its executor.
//
// The thread takes the job's lock, and ends once the job's EpochMachine is closed and the rank's
// executor has ended.
#ifndef TESSERA_WORKER_KEEPER_RANK_SUPERVISOR_H_
#define TESSERA_WORKER_KEEPER_RANK_SUPERVISOR_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/job_parts.h"

namespace tessera {

class RankSupervisor {
 public:
  // `context` and `parts` outlive it. Errors: ResourceExhausted  no thread
  static absl::StatusOr<std::unique_ptr<RankSupervisor>> Start(const JobContext* context,
                                                               JobParts* parts, Rank rank);
  // Waits for the thread.
  ~RankSupervisor();

 private:
  struct ExecutorEnd {
    std::string how;
    bool was_ready = false;
    bool was_hosted = false;
    bool left_its_epoch = false;
  };
  RankSupervisor(const JobContext* context, JobParts* parts, Rank rank)
      : context_(context), parts_(parts), rank_(rank) {}
  void Run();
  // Returns the socket to read. Errors: Cancelled the job ends; as Launch and
  // CreatePacketSocketPair.
  absl::StatusOr<int> Launch();
  // Until there is one, or the job ends. Tells the coordinator if it keeps an epoch waiting.
  void AwaitOffer();
  ExecutorEnd Reap();
  // Waits for its end. Tells trainer and coordinator if that takes long.
  std::string AwaitEnd(RunningExecutor* executor);
  // `failed_starts`: in a row, of this rank.
  void OnEndLocked(const std::string& how, int failed_starts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts_->mu);

  const JobContext* const context_;
  JobParts* const parts_;
  const Rank rank_;
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_RANK_SUPERVISOR_H_
