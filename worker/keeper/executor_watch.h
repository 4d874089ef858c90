// Watches one executor of a rank from its launch until its socket is beyond use: reads its events,
// passes them to the parts of the job, and ends it where it stands still.
//
// An executor that the worker launched is read until the first error; what stands still is killed.
// One in the process of a trainer gets no signal. The worker waits instead: as long as the socket is
// open a stopped executor may wake up and write, so the rank gets no other one.
//
//   the worker shuts its half ──► the executor reads the end, finishes, closes its end
//
// For one thread; takes the job's lock.
#ifndef TESSERA_WORKER_KEEPER_EXECUTOR_WATCH_H_
#define TESSERA_WORKER_KEEPER_EXECUTOR_WATCH_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "proto/executor.pb.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/job_parts.h"

namespace tessera {

class ExecutorWatch {
 public:
  // The patience of Standstill with executors of the worker's own, which are killed then; and how
  // long one may take to die of that. At most the answer timeout.
  static constexpr absl::Duration kStandstill = absl::Seconds(5);

  // `socket`: that of the rank's slot. `context` and `parts` outlive it.
  ExecutorWatch(const JobContext* context, JobParts* parts, Rank rank, int socket)
      : context_(context), parts_(parts), rank_(rank), socket_(socket) {}

  // Returns once the executor has ended, or is not to be listened to any more.
  void ReadEvents();

 private:
  void ReadLaunchedEvents();
  // Until there is something to read of a launched executor. One that stands still is killed.
  void AwaitLaunched();
  // Reads to the very end, since that is when it can write no more.
  void ReadHostedEvents();
  // False: it is not waited for any more. Tells the coordinator if it keeps an epoch waiting.
  bool AwaitHosted();
  void OnEvent(const v1::ExecutorEvent& event);
  void OnReadyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts_->mu);
  void OnQuiescedLocked(const v1::ExecutorQuiesced& quiesced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts_->mu);

  const JobContext* const context_;
  JobParts* const parts_;
  const Rank rank_;
  const int socket_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EXECUTOR_WATCH_H_
