// The executors of a job's ranks on this worker: for each rank the one that it has, the worker's end
// of its socket, and what it said last. Thread-compatible; guarded by the job's lock.
#ifndef TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_
#define TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "worker/keeper/executor_launcher.h"
#include "worker/keeper/job_regions.h"

namespace tessera {

struct ExecutorSlot {
  // Does nothing while no executor is ready. An executor that does not take it is ended.
  void Send(const v1::ExecutorCommand& command, absl::Span<const int> fds = {});
  // Kills the executor, if there is one. One in a trainer's process is told to end by its socket.
  void End();

  std::unique_ptr<RunningExecutor> executor;
  UniqueFd socket;  // The worker's end.
  bool ready = false;
  bool quiet = false;     // Outside an epoch.
  bool ending = false;    // It was told to.
  std::string why_ended;  // By the worker itself, for what the executor did; else empty.
  Incarnation host;       // The attachment whose trainer has it in its process; 0: none has.
  bool left = false;      // It has left the running epoch by itself, with nothing under way.
  bool vacant = false;    // The running epoch continues without an executor of this rank.
  absl::Time launched_at, ready_at;
  int64_t num_starts = 0;  // Of executors in this slot.
  std::string address;     // Where it listens for ranks of other workers, in the current epoch.
  v1::OrderAnnouncement pending_order;  // epoch 0: none.
  v1::StepReport last_report;           // epoch 0: none.
  std::string saving_path;              // Of the model file that is being written; else empty.
};

// Those of all ranks of this worker, in their order.
class ExecutorSlots {
 public:
  explicit ExecutorSlots(const LocalRanks& local) : first_(local.first()), slots_(local.count()) {}
  // Of a rank of this worker.
  ExecutorSlot& Of(Rank rank) { return slots_[rank.value() - first_]; }
  const ExecutorSlot& Of(Rank rank) const { return slots_[rank.value() - first_]; }
  void SendAll(const v1::ExecutorCommand& command) {
    for (ExecutorSlot& slot : slots_) slot.Send(command);
  }

  std::vector<ExecutorSlot>::iterator begin() { return slots_.begin(); }
  std::vector<ExecutorSlot>::iterator end() { return slots_.end(); }
  std::vector<ExecutorSlot>::const_iterator begin() const { return slots_.begin(); }
  std::vector<ExecutorSlot>::const_iterator end() const { return slots_.end(); }

 private:
  int first_;
  std::vector<ExecutorSlot> slots_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_
