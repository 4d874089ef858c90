// Checkpoints of a hosted job: forwards what the coordinator wants to the executors, and what they
// report of any to the coordinator, each end once. Thread-compatible; guarded by the job's lock.
#ifndef TESSERA_WORKER_KEEPER_SAVE_FORWARDER_H_
#define TESSERA_WORKER_KEEPER_SAVE_FORWARDER_H_

#include <deque>
#include <map>
#include <string>

#include "base/ids.h"
#include "proto/coordinator.pb.h"
#include "proto/worker.pb.h"
#include "worker/keeper/ended_saves.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/save_counts.h"

namespace tessera {

class SaveForwarder {
 public:
  // Both outlive it.
  SaveForwarder(const JobContext* context, ExecutorSlots* executors)
      : context_(context), executors_(executors) {}

  void Want(const v1::RequestedSave& requested);
  // What is wanted, if anything ever was, for an executor that begins.
  void SendRequest(ExecutorSlot& slot) const;
  void OnReport(Rank rank, v1::SaveReport report);
  // The rank's executor has ended, perhaps in the middle of a save.
  void EndOpen(Rank rank, const std::string& how);
  // The last ones that ended, for a coordinator that was away.
  const std::deque<v1::SaveReport>& ended() const { return ended_.reports(); }
  // Of a rank, since this daemon holds the job.
  SaveCounts CountsOf(Rank rank) const;

 private:
  const JobContext* const context_;
  ExecutorSlots* const executors_;
  v1::RequestedSave requested_;
  EndedSaves ended_;
  std::map<Rank, v1::SaveReport> open_;  // That the rank's executor has started and not ended.
  std::map<Rank, SaveCounts> counts_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_SAVE_FORWARDER_H_
