#include "coordinator/core/step_ledger.h"

namespace tessera::coordinator {

std::optional<StepLedger::HashMismatch> StepLedger::Report(Rank rank, Step step,
                                                           uint64_t order_hash) {
  if (step <= committed_step_) return std::nullopt;
  std::map<Rank, uint64_t>& hashes = open_[step];
  if (!hashes.emplace(rank, order_hash).second) return std::nullopt;
  for (const auto& [other, other_hash] : hashes) {
    if (other_hash == order_hash) continue;
    return HashMismatch{std::min(other, rank), std::max(other, rank), step};
  }
  if (static_cast<int64_t>(hashes.size()) == world_size_) {
    committed_step_ = step;
    // A rank that has finished this step has also finished all earlier ones.
    open_.erase(open_.begin(), open_.upper_bound(step));
  } else if (open_.size() > kMaxOpenSteps) {
    // Bounded, because a worker may report any steps. A step that is dropped here is committed with
    // the next one that all ranks report.
    open_.erase(open_.begin());
  }
  return std::nullopt;
}

}  // namespace tessera::coordinator
