// A client that sets values of a job in a simulation, and the coordinator's part of it: LiveWriter
// with its sessions. Ends with the coordinator's process. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_WRITER_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/service/live/put_verdict.h"
#include "coordinator/service/simulated_coordinator.h"
#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_put_line.h"
#include "coordinator/service/simulated_truth.h"

namespace tessera::coordinator {

class SimulatedPutWriter {
 public:
  // Of `truth`'s job, which has values. All outlive it.
  SimulatedPutWriter(uint64_t put, const JobView& view, SimulatedTruth* truth, SimulatedDice* dice,
                     SimulatedCoordinator* coordinator);
  ~SimulatedPutWriter();

  // Gets on. False: it is over.
  bool Work();
  // The client is gone.
  void GiveUp() { is_wanted_ = false; }
  // A connection breaks: each side learns that when it has read what was sent.
  void Cut();

  const JobId& job() const { return truth_->id(); }
  SimulatedPutLinePtr FindLine(const std::string& session) const;

 private:
  bool Begin();
  bool Stage();
  void Offer();
  bool Follow();
  std::optional<WorkerPut> Hear(SimulatedPutLine* line);
  // The job or the coordinator's process.
  bool IsGone() const;
  absl::Time Now() const { return coordinator_->clock().now(); }

  const uint64_t put_;
  SimulatedTruth* const truth_;
  SimulatedDice* const dice_;
  SimulatedCoordinator* const coordinator_;
  const int life_;  // Of the coordinator.
  const bool has_replicas_;
  std::vector<SimulatedPutLinePtr> lines_;
  bool has_begun_ = false;
  absl::Time deadline_;  // For the workers to have it all; then for a step.
  std::unique_ptr<OfferedPut> offered_;
  int64_t applied_step_ = 0;
  bool is_wanted_ = true;
};

// All of them: a job has one at a time.
class SimulatedPutHub {
 public:
  SimulatedPutHub(SimulatedDice* dice, SimulatedCoordinator* coordinator,
                  std::function<SimulatedTruth*(const JobId&, Generation)> find_truth)
      : dice_(dice), coordinator_(coordinator), find_truth_(std::move(find_truth)) {}

  // One of them gets on, or something befalls it. `at_will`: a new one begins, now and then.
  void Act(bool at_will);
  SimulatedPutLinePtr FindLine(const std::string& session) const;
  bool HasPending() const { return !writers_.empty(); }

 private:
  void Begin();

  SimulatedDice* const dice_;
  SimulatedCoordinator* const coordinator_;
  const std::function<SimulatedTruth*(const JobId&, Generation)> find_truth_;
  uint64_t num_puts_ = 0;
  std::vector<std::unique_ptr<SimulatedPutWriter>> writers_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_WRITER_H_
