#include "coordinator/core/epoch_gather.h"

#include <algorithm>
#include <utility>

namespace tessera::coordinator {

std::set<WorkerId> WorkersOf(const std::vector<RankPlacement>& placements) {
  std::set<WorkerId> workers;
  for (const RankPlacement& placement : placements) workers.insert(placement.worker);
  return workers;
}

EpochGather::EpochGather(std::vector<RankPlacement> placements)
    : placements_(std::move(placements)), missing_(WorkersOf(placements_)) {}

void EpochGather::Add(const WorkerId& worker, const EpochPrepared& answer) {
  // Workers repeat their answers after a reconnect. To merge one twice changes nothing.
  if (missing_.erase(worker) > 0) {
    answered_.insert(worker);
  } else if (!HasAnswered(worker)) {
    return;
  }
  if (answer.holds_nothing) empty_.insert(worker);
  // The decision has to be that of the latest step: it goes to workers that lack this step.
  if (answer.decided_step > decided_step_ || decision_.empty()) decision_ = answer.decision;
  decided_step_ = std::max(decided_step_, answer.decided_step);
  for (const auto& [rank, address] : answer.rank_addresses) {
    // A worker must not send the peers of another worker's rank to an address of its choice.
    const bool is_its_own = rank >= 0 && rank < static_cast<int32_t>(placements_.size()) &&
                            placements_[rank].worker == worker;
    if (is_its_own) rank_addresses_[rank] = address;
  }
}

Step EpochGather::ResumeStep(Step committed_step) const {
  return std::max(committed_step, decided_step_);
}

}  // namespace tessera::coordinator
