// The outcome of a put that was offered to all workers, from what each of them reported.
//
//   kPending ──► kApplied   all of its ranks have it
//            ──► kOut       none of its ranks has it, and none will vote for it
//            ──► kLost      it reports nothing more
//
// A rank takes the put only if all ranks of all workers voted for it, and a decision is completed
// everywhere. So if one worker has it, all will. Only a job whose workers each have all shards can
// continue without the one that knew of the decision: there all of them have to have it. If all
// workers are out, no rank ever has it. Pure; thread-compatible.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_

#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace tessera::coordinator {

enum class WorkerPut { kPending, kApplied, kOut, kLost };

enum class PutVerdict {
  kWait,      // Reports are still missing.
  kWithdraw,  // It can no longer succeed: tell the pending workers.
  kSet,       // All ranks have it, or will.
  kNotSet,    // No rank has it, or ever will.
  kUnknown,   // Either kSet or kNotSet.
};

// `has_replicas`: each worker has all shards. `is_wanted`: not given up. `is_over`: the pending
// workers took too long after that.
PutVerdict Judge(const std::vector<WorkerPut>& workers, bool has_replicas, bool is_wanted,
                 bool is_over);

class OfferedPut {
 public:
  // `patience`: for the workers that are pending once one has reported, or once it is withdrawn.
  OfferedPut(size_t num_workers, bool has_replicas, absl::Duration patience)
      : workers_(num_workers, WorkerPut::kPending),
        has_replicas_(has_replicas),
        patience_(patience) {}

  void Report(size_t worker, WorkerPut state) { workers_[worker] = state; }
  bool IsPending(size_t worker) const { return workers_[worker] == WorkerPut::kPending; }
  // kWithdraw is returned once.
  PutVerdict Look(bool is_wanted, absl::Time now);

 private:
  std::vector<WorkerPut> workers_;
  const bool has_replicas_;
  const absl::Duration patience_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool is_withdrawn_ = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
