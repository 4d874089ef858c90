// Which ranks have finished which steps of one epoch, and the newest step that all have finished
// with the same execution order. Value; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_STEP_LEDGER_H_
#define TESSERA_COORDINATOR_CORE_STEP_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>

#include "coordinator/core/types.h"

namespace tessera::coordinator {

class StepLedger {
 public:
  struct HashMismatch {
    Rank first;
    Rank second;
    Step step;
  };

  StepLedger() = default;
  StepLedger(int32_t world_size, Step committed_step)
      : world_size_(world_size), committed_step_(committed_step) {}

  // Records that `rank` finished `step` with operations of this hash. Only a rank's first report of
  // a step counts. Returns the two ranks if the hash differs from another rank's; such a step never
  // commits. Requires 0 <= rank < world_size.
  std::optional<HashMismatch> Report(Rank rank, Step step, uint64_t order_hash);

  // Never goes back.
  Step committed_step() const { return committed_step_; }

 private:
  // Steps that some but not all ranks reported. Ranks are in lock step, so these are at most the
  // steps that are reported together. A rank that runs away cannot grow this.
  static constexpr size_t kMaxOpenSteps = 256;

  int32_t world_size_ = 1;
  Step committed_step_;
  std::map<Step, std::map<Rank, uint64_t>> open_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_STEP_LEDGER_H_
