// A whole cluster in one thread for tests: the real core over the real record codec and a memory
// journal, and workers that behave as the protocol asks of them, with everything that can go wrong
// going wrong by a seeded dice. Time is simulated. Checks, as it runs, what must never happen.
//
// Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/storage/memory_journal.h"

namespace tessera::coordinator {

class SimulatedCluster {
 public:
  // `group_size`: of a hybrid job, each group of which has all shards and a worker of its own; 0:
  // it is none.
  SimulatedCluster(uint32_t seed, int num_workers, int32_t world_size, int32_t group_size = 0);

  // One random thing happens: mostly progress, sometimes (while `chaos`) a fault.
  void Act(bool chaos);
  // Ends every fault: all workers run and are connected.
  void Heal();

  // The job, and what each worker knows of it: for a person.
  std::string Describe() const;

  // Of all jobs so far, one after the other.
  int64_t committed_step() const { return past_committed_ + shown_committed_; }
  int64_t epoch() const { return past_epochs_ + shown_epoch_; }
  int num_jobs() const { return num_jobs_; }
  int num_restarts() const { return num_restarts_; }
  int num_rebuilt() const { return num_rebuilt_; }  // Workers that were given their shards.

 private:
  static constexpr int64_t kOperations = 5;  // A step.
  inline static const JobId kJob{"job"};

  struct RankRun {
    int64_t step = 0;  // Being worked on.
    int64_t sequence = 0;
    bool waiting = false;  // For a release.
    bool voted = false;    // Has done this step's operations and waits for the others.
    OrderEntry announced;
  };
  // What a worker knows; gone when it crashes.
  struct Worker {
    WorkerId id;
    int64_t incarnation = 0;
    bool silent = false;  // Cut off from the coordinator.
    bool connected = false;
    bool deviates = false;  // Its next announcement differs from the others'.
    std::deque<Command> inbox;
    Creation creation;
    Epoch epoch;
    bool running = false;
    int64_t first_step = 0;      // Of this epoch: the one that is recorded.
    int64_t decided_step = 0;    // Survives epochs, not crashes; like:
    bool has_values = false;     // An epoch has begun here, so that the shards were given values.
    bool lacks_values = false;   // They are about to be, by another worker.
    bool epoch_is_over = false;  // Its daemon was replaced in this epoch; the memory is there.
    bool is_partial = false;     // Another part of the same shards has crashed.
    std::map<int32_t, RankRun> ranks;
  };

  using Handler = std::function<absl::Status(Effects*)>;
  // Runs a handler as the host does: journal, then accept and deliver, or roll back.
  absl::Status Run(const Handler& handler);
  // Runs what a worker says on its stream.
  void Tell(Worker* worker, const Handler& handler);
  void Deliver(const Effects& effects);
  void Create();
  // A job whose shards are lost is deleted and made anew, as its owner would.
  void ReplaceLostJob();
  void CheckShown();
  // Of a hybrid job: what a worker had that lost its ranks since the last look, another one has.
  void CheckKeepsACopy(const JobView& view);
  void CheckRelease(const OrderRelease& release);

  bool is_hybrid() const { return group_size_ > 0; }
  bool HoldsAll(const Worker& worker) const {
    return worker.creation == creation_ && worker.has_values && !worker.lacks_values;
  }
  // Of a hybrid job: whether some worker with ranks of it, but `without`, has what it has come to.
  bool IsHeld(const Worker* without) const;
  // Whether the worker has had ranks there since it last took part.
  static bool IsPlaced(const Worker& worker, const std::vector<RankPlacement>& places);
  // Gives the worker its shards, if another one of its epoch has them now.
  void Rebuild(Worker* worker);
  void Boot(Worker* worker);
  // Its daemon ends, and the next one has its memory.
  void ReplaceDaemon(Worker* worker);
  void Connect(Worker* worker);
  void Disconnect(Worker* worker);  // The coordinator sees the end of its stream.
  void Handle(Worker* worker, const Command& command);
  // Drops the job with its shards.
  void Forget(Worker* worker);
  void HandleStart(Worker* worker, const StartEpoch& start);
  void Work(Worker* worker);
  void WorkOn(Worker* worker, int32_t rank);
  void Announce(Worker* worker, int32_t rank);
  void FinishStep(int32_t rank, RankRun* run, Worker* worker);
  bool AllVoted(Creation creation, Epoch epoch, int64_t step) const;
  void SendHeartbeat(Worker* worker);
  void RestartCoordinator();
  void Misfortune(Worker* worker);
  int Dice(int sides) { return static_cast<int>(random_() % sides); }
  Sender SenderOf(const Worker& worker) const {
    return {worker.id, Incarnation(worker.incarnation)};
  }

  std::mt19937 random_;
  const int32_t world_size_, group_size_;
  absl::Time now_ = absl::UnixEpoch();
  MemoryJournal journal_;
  Coordinator core_;
  std::vector<Worker> workers_;
  int journal_failures_ = 0;  // That many of the next writes fail.
  int num_restarts_ = 0;
  int num_rebuilt_ = 0;

  // What has been seen, to compare with.
  int num_jobs_ = 0;
  Creation creation_;  // Of the current job.
  int64_t past_committed_ = 0;
  int64_t past_epochs_ = 0;
  int64_t shown_committed_ = 0;
  int64_t shown_epoch_ = 0;
  std::vector<RankPlacement> placements_;
  std::map<Epoch, Step> resume_steps_;
  std::map<std::tuple<Epoch, Step, int64_t>, std::map<Rank, OrderEntry>> announced_;
  // Decided by the data plane: all ranks of one epoch voted for it.
  int64_t max_decided_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_CLUSTER_H_
