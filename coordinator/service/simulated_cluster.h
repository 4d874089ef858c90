// A whole cluster in one thread for tests: the real core behind the real codecs and over a memory
// journal, workers that behave as the protocol asks of them, and owners of jobs, with everything
// that can go wrong going wrong by a seeded dice. Time is simulated. Checks, as it runs, what must
// never happen.
//
// Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/service/simulated_calls.h"
#include "coordinator/service/simulated_coordinator.h"
#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_owner.h"
#include "coordinator/service/simulated_put_writer.h"
#include "coordinator/service/simulated_truth.h"
#include "coordinator/service/simulated_worker.h"

namespace tessera::coordinator {

struct SimulatedShape {
  int num_workers = 1;
  int num_devices = 2;  // Of each worker.
  int num_jobs = 1;
  // Of one job; of several, the first has one rank, the next one two, and so on up to this, and
  // again.
  int32_t world_size = 1;
  int32_t group_size = 0;  // Of hybrid jobs, each group of which has a worker of its own; 0: none.
  PlacementRule placement = PlacementRule::kOneWorkerFirst;
  bool has_copies = false;  // The coordinator's journal is replaced by an older copy, now and then.
};

class SimulatedCluster {
 public:
  SimulatedCluster(uint32_t seed, const SimulatedShape& shape);

  // One random thing happens: mostly progress, sometimes (while `chaos`) a fault.
  void Act(bool chaos);
  // Ends every fault: all workers run and are connected.
  void Heal();
  // From now on, until each job there is has taken so many steps more.
  void AwaitSteps(int64_t steps);
  // Workers hold no other job by then, and all saves and puts have ended.
  bool HasTakenThem() const;

  // The jobs, and what each worker knows of them: for a person.
  std::string Describe() const;

  // Of all jobs so far.
  int64_t committed_steps() const;
  int64_t num_epochs() const;
  int64_t num_jobs() const { return truths_.size(); }
  int64_t num_restarts() const { return coordinator_.num_restarts(); }
  int64_t num_saved() const;  // Checkpoints that all ranks have made.
  int64_t num_put() const;    // Puts of which a client was told that they are set.
  int64_t num_gone_back() const { return num_gone_back_; }
  int64_t num_rebuilt() const { return num_rebuilt_; }  // Workers that were given their shards.

 private:
  struct Node {
    std::unique_ptr<SimulatedWorker> worker;
    bool silent = false;         // Cut off from the coordinator.
    int64_t num_registers = 0;   // Calls to register.
    bool waits = false;          // For the reply of the last one.
    bool was_forgotten = false;  // By the coordinator, as no job needed it.
  };

  void OnDurable(const Effects& effects);
  void CheckShown(const JobId& job);
  void OnSpec(const JobSpecRecord& spec, const Effects& effects);
  void CheckSave(const SaveRecord& record);
  // No save waits longer than it was to.
  void CheckDeadlines();
  // No device is of two jobs.
  void CheckDevices() const;
  // Of a hybrid job: what a worker had that lost its ranks by this change, another one has.
  void CheckKeepsACopy(const JobStatusRecord& record);
  SimulatedTruth* FindTruth(const JobId& job, Generation generation);
  // Whether some worker with ranks of the job, but `without`, has what it has come to.
  bool IsHeld(const SimulatedTruth& truth, const SimulatedWorker* without) const;
  // Whether the coordinator has been told of the life that this worker is in.
  bool IsKnown(const Node& node) const;
  // Whether this process of the coordinator has been told by the worker what it holds.
  bool IsHeard(const Node& node) const;

  void Connect(Node* node);
  void Register(Node* node);
  void OnRegistered(Node* node, const absl::StatusOr<v1::RegisterWorkerResponse>& response);
  void ReadFrom(Node* node);
  void Work(Node* node);
  void Misfortune(Node* node);
  void CopyOrGoBack();
  bool OwnersMayAct() const;
  // Of what workers hold, after the coordinator went back.
  bool HasTakenOver() const;

  SimulatedDice dice_;
  const int32_t acts_per_fault_;
  const bool has_copies_;
  SimulatedCalls calls_;
  using Key = std::pair<JobId, Generation>;
  std::map<Key, std::unique_ptr<SimulatedTruth>> truths_;
  std::vector<std::unique_ptr<SimulatedTruth>> lost_truths_;  // Of jobs that nobody knows.
  SimulatedCoordinator coordinator_;
  SimulatedPutHub puts_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<SimulatedOwner>> owners_;
  std::map<JobId, JobStatus> statuses_;  // As they are durable.
  std::map<Key, int64_t> awaited_steps_;
  int64_t awaited_more_ = 0;
  int64_t num_rebuilt_ = 0;
  int64_t num_gone_back_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_
