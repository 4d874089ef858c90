// What has really become of the puts of one job of a simulation, and what clients must never be
// told. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_TRUTH_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_TRUTH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/core/types.h"

namespace tessera::coordinator {

class SimulatedPutTruth {
 public:
  explicit SimulatedPutTruth(int32_t world_size) : world_size_(world_size) {}

  // --- the ranks' side ---
  // The rank votes for the version that has the put. `can_read`: what its worker has stored.
  void Vote(Epoch epoch, int64_t step, int32_t rank, bool can_read);
  // Once all ranks have voted: whether the version is decided.
  std::optional<bool> OutcomeOf(Epoch epoch, int64_t step) const;
  // A worker knows that the put is in this version.
  void Record(uint64_t put, Epoch epoch, int64_t step);
  // A worker begins an epoch. `is_void`: memory was lost of which there was no other copy.
  void Begin(Epoch epoch, int64_t resume_step, bool is_void);
  // The job may begin again, in epochs that it has been in.
  void ForgetEpochs();

  // --- the coordinator's side: fails the test where it says what is not so ---
  void CheckSet(uint64_t put, int64_t step);
  void CheckNotSet(uint64_t put);
  // It is one of the past, and may drop what it has heard of.
  void ForgetAnswers();
  int64_t num_set() const { return num_set_; }  // As clients were told.

 private:
  const int32_t world_size_;
  struct Votes {
    uint32_t ranks = 0;  // One bit each.
    bool can_read = true;
  };
  std::map<std::pair<Epoch, int64_t>, Votes> votes_;  // By step.
  std::map<uint64_t, int64_t> recorded_;              // Steps, by put.
  Epoch begun_;                                       // The latest.
  std::set<uint64_t> void_;                           // Set, and gone with the memory.
  std::set<uint64_t> set_, not_set_;                  // As clients were told.
  int64_t num_set_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_TRUTH_H_
