// Values that a process outside the job sets: the local ranks are given them, vote for them after a
// step, and report when they have dropped them. At most one put at a time.
// Thread-compatible; guarded by the job's lock.
#ifndef TESSERA_WORKER_KEEPER_PUT_FORWARDER_H_
#define TESSERA_WORKER_KEEPER_PUT_FORWARDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "proto/executor.pb.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/job_put.h"
#include "worker/keeper/put_stage.h"

namespace tessera {

class PutForwarder {
 public:
  // Both outlive it.
  PutForwarder(const JobContext* context, ExecutorSlots* executors)
      : context_(context), executors_(executors) {}

  // Has the ranks vote for it, in this epoch and later ones, until it is decided or withdrawn. One
  // that was there before is as if withdrawn.
  void Offer(std::shared_ptr<const StagedPut> put);
  void Withdraw(uint64_t put);  // Also of one that is applied: then its file is let go.
  struct Progress {
    std::optional<DecidedPut> decided;  // Known here, that is.
    bool is_applied = false;            // By all of this worker's ranks.
    bool is_over = false;               // None of them votes for it any more.
    std::string failure;                // Why no rank can take it; else empty.
  };
  Progress ProgressOf(uint64_t put) const;

  // To a rank whose executor is ready, if there is one.
  void GiveTo(Rank rank);
  void OnGone(Rank rank, const v1::ExecutorPutGone& gone);
  void OnHolderEnded(Rank rank);  // The executor of this rank.

 private:
  void Drop();

  const JobContext* const context_;
  ExecutorSlots* const executors_;
  JobPut put_;
  std::shared_ptr<const StagedPut> staged_;  // Null: none is offered.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_PUT_FORWARDER_H_
