#include "coordinator/service/live/put_verdict.h"

#include <algorithm>
#include <utility>

namespace tessera::coordinator {

PutVerdict Judge(const std::vector<WorkerPut>& workers, bool has_replicas, bool is_wanted,
                 bool is_over) {
  const auto count = [&](WorkerPut state) {
    return std::count(workers.begin(), workers.end(), state);
  };
  const bool is_pending = count(WorkerPut::kPending) > 0 && !is_over;
  const auto num_workers = static_cast<long>(workers.size());
  if (count(WorkerPut::kApplied) > 0) {
    if (is_pending) return PutVerdict::kWait;
    // One worker that has applied it proves that all ranks will: it was decided by all votes. With
    // replicas it may be lost, and the job continues from a worker that did not know of it.
    const bool is_proof = !has_replicas || count(WorkerPut::kApplied) == num_workers;
    return is_proof ? PutVerdict::kSet : PutVerdict::kUnknown;
  }
  if (count(WorkerPut::kOut) == num_workers) return PutVerdict::kNotSet;
  if (is_pending) {
    // Only with the votes of all ranks is a put taken, so without one worker it cannot be.
    const bool can_come = count(WorkerPut::kOut) + count(WorkerPut::kLost) == 0;
    return is_wanted && can_come ? PutVerdict::kWait : PutVerdict::kWithdraw;
  }
  // Some worker reports nothing, and it may be the one that applied the put.
  return PutVerdict::kUnknown;
}

PutVerdict OfferedPut::Look(bool is_wanted, absl::Time now) {
  const bool has_news = std::any_of(workers_.begin(), workers_.end(),
                                    [](WorkerPut state) { return state != WorkerPut::kPending; });
  if (has_news || is_withdrawn_) deadline_ = std::min(deadline_, now + patience_);
  const PutVerdict verdict = Judge(workers_, has_replicas_, is_wanted, now >= deadline_);
  if (verdict != PutVerdict::kWithdraw) return verdict;
  return std::exchange(is_withdrawn_, true) ? PutVerdict::kWait : verdict;
}

}  // namespace tessera::coordinator
