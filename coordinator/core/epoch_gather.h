// Collects the workers' answers to one epoch's PrepareEpoch. Value; thread-compatible.
//
//   resume_step = max(committed_step, decided_step of every worker)
//
// A step that any worker knows to be decided was voted for by all ranks, so all can complete it.
#ifndef TESSERA_COORDINATOR_CORE_EPOCH_GATHER_H_
#define TESSERA_COORDINATOR_CORE_EPOCH_GATHER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

class EpochGather {
 public:
  EpochGather() = default;
  explicit EpochGather(std::vector<RankPlacement> placements);  // By rank.

  // Records an answer. The last one of a worker counts; a worker without ranks is ignored, and so
  // are addresses of ranks that are another worker's.
  void Add(const WorkerId& worker, const EpochPrepared& answer);

  bool complete() const { return missing_.empty(); }
  const std::set<WorkerId>& missing() const { return missing_; }
  bool HasAnswered(const WorkerId& worker) const { return answered_.count(worker) > 0; }
  Step ResumeStep(Step committed_step) const;
  // Workers that should hold state of earlier epochs and hold none, by any of their answers: what
  // is lost does not come back by a repetition.
  const std::set<WorkerId>& empty_workers() const { return empty_; }
  // Where ranks listen, as reported so far.
  const std::map<int32_t, std::string>& rank_addresses() const { return rank_addresses_; }
  // The decision about the latest decided step.
  const std::string& decision() const { return decision_; }

 private:
  std::vector<RankPlacement> placements_;
  std::set<WorkerId> missing_;
  std::set<WorkerId> answered_;
  std::set<WorkerId> empty_;
  Step decided_step_;
  std::string decision_;
  std::map<int32_t, std::string> rank_addresses_;
};

// The distinct workers of `placements`.
std::set<WorkerId> WorkersOf(const std::vector<RankPlacement>& placements);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EPOCH_GATHER_H_
