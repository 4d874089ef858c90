// What has really become of the checkpoints of one job of a simulation, and what the coordinator
// may journal of them. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVE_TRUTH_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVE_TRUTH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/records.h"
#include "coordinator/service/simulated_clock.h"
#include "coordinator/service/simulated_dice.h"

namespace tessera::coordinator {

// One checkpoint that all ranks of an epoch make of one step.
struct SimulatedSave {
  Epoch epoch;
  int64_t ordinal = 0;  // Which of the epoch's.
  int64_t number = 0;   // Of the request; 0: the trainers want it.
  int64_t step = 0;
  std::string path;
  uint32_t written = 0;  // By which ranks, one bit each.
  bool cancelled = false;
  std::optional<absl::StatusCode> outcome;  // Once all ranks are through with it.
};

class SimulatedSaveTruth {
 public:
  SimulatedSaveTruth(int32_t world_size, SimulatedDice* dice)
      : world_size_(world_size), dice_(dice) {}

  // --- the ranks' side ---
  // All ranks voted for the step, and for this save with it. 0: for none.
  void Decide(Epoch epoch, int64_t step, int64_t number);
  // The one that the ranks make of this step; null: none.
  SimulatedSave* Find(Epoch epoch, int64_t step);
  void Write(SimulatedSave* save, int32_t rank);

  // --- the coordinator's side: fails the test where it says what is not so ---
  // It journals that now.
  void Check(const Save& save, const SimulatedClock& clock);
  // It has looked at the deadlines, and this save waits on.
  void CheckWaits(int64_t number, const SimulatedClock& clock);
  // Of requested saves that were made.
  int64_t num_journalled() const;
  // It knows nothing later than this any more.
  void Forget() {
    journalled_.clear();
    deadlines_.clear();
  }

 private:
  void CheckEnd(const Save& save) const;
  void CheckChange(const Save& before, const Save& save) const;

  const int32_t world_size_;
  SimulatedDice* const dice_;
  std::map<std::pair<Epoch, int64_t>, SimulatedSave> made_;  // By ordinal.
  std::map<int64_t, std::string> wanted_;                    // Paths, by number.
  std::map<int64_t, Save> journalled_;                       // As it stands, by number.
  std::map<int64_t, SimulatedClock::Moment> deadlines_;      // Of these.
  std::set<int64_t> overdue_;                                // Saves that waited beyond them.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVE_TRUTH_H_
