#include "coordinator/service/live/put_verdict.h"

#include <algorithm>

namespace tessera::coordinator {

PutVerdict Judge(const std::vector<WorkerPut>& workers, bool is_wanted, bool is_over) {
  const auto count = [&](WorkerPut state) {
    return std::count(workers.begin(), workers.end(), state);
  };
  const bool is_pending = count(WorkerPut::kPending) > 0 && !is_over;
  // One worker that has applied it proves that all ranks will: it was decided by all votes.
  if (count(WorkerPut::kApplied) > 0) return is_pending ? PutVerdict::kWait : PutVerdict::kSet;
  if (count(WorkerPut::kOut) == static_cast<long>(workers.size())) return PutVerdict::kNotSet;
  if (is_pending) {
    // Only with the votes of all ranks is a put taken, so without one worker it cannot be.
    const bool can_come = count(WorkerPut::kOut) + count(WorkerPut::kLost) == 0;
    return is_wanted && can_come ? PutVerdict::kWait : PutVerdict::kWithdraw;
  }
  // Some worker reports nothing, and it may be the one that applied the put.
  return PutVerdict::kUnknown;
}

}  // namespace tessera::coordinator
