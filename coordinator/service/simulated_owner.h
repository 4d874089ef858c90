// Who makes, replaces and deletes one job of a simulation, by calls that may be lost and come late.
// Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_OWNER_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_OWNER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "coordinator/service/simulated_calls.h"
#include "coordinator/service/simulated_coordinator.h"
#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_truth.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

// The one job of `world_size` ranks that simulations have. `group_size`: of a hybrid job; 0: it is
// none.
v1::CreateJobRequest SimulatedJobRequest(const std::string& id, int32_t world_size,
                                         int32_t group_size);

class SimulatedOwner {
 public:
  // `find_truth`: of a generation that is durable.
  SimulatedOwner(v1::CreateJobRequest job, SimulatedDice* dice, SimulatedCalls* calls,
                 SimulatedCoordinator* coordinator,
                 std::function<SimulatedTruth*(const JobId&, Generation)> find_truth);

  // Looks at the job, and does one thing about it, if anything. `at_will`: also deletes it for no
  // reason, now and then, and has it saved.
  void Act(bool at_will);
  bool HasPendingSaves() const;
  // The coordinator is one of the past from now on.
  void GoBack() { has_gone_back_ = true; }

  JobId id() const { return JobId(job_.job_id()); }
  // Of the job that it has made; 0: it has none now.
  Generation generation() const { return generation_; }

 private:
  enum class Request { kNothing, kCreate, kDelete };

  void Look(bool at_will);
  void LookAfterGoingBack();
  void Call();
  void Create();
  void Delete();
  void ActOnSaves();
  void RequestSave(v1::RequestSaveRequest request);
  void CancelSave(int64_t number);

  v1::CreateJobRequest job_;
  SimulatedDice* const dice_;
  SimulatedCalls* const calls_;
  SimulatedCoordinator* const coordinator_;
  const std::function<SimulatedTruth*(const JobId&, Generation)> find_truth_;
  Request request_ = Request::kCreate;
  int64_t num_requests_ = 1;  // The one that is made, or was made last.
  int64_t num_calls_ = 0;
  bool waits_ = false;  // For the reply of the last call.
  Generation generation_;
  int64_t num_saves_ = 0;
  bool has_gone_back_ = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_OWNER_H_
