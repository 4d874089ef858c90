// A job as a worker of a simulation holds it: the part of HostedJob and its executors that the
// coordinator sees. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_HELD_JOB_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_HELD_JOB_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_puts.h"
#include "coordinator/service/simulated_saves.h"
#include "coordinator/service/simulated_truth.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

// The ranks that are placed on the worker.
std::set<int32_t> LocalRanks(const v1::Job& job, const std::string& worker);

// What a worker says that refuses a job, as it holds another one of the name.
constexpr char kHoldsAnother[] = "it holds another one";

class SimulatedHeldJob {
 public:
  static constexpr int64_t kOperations = 5;  // A step.
  using Emit = std::function<void(v1::WorkerEvent)>;

  SimulatedHeldJob(std::string worker, const v1::Job& job, SimulatedTruth* truth,
                   SimulatedDice* dice, Emit emit);

  void Prepare(const v1::Job& job);
  void Start(const v1::StartEpoch& start);
  void Release(const v1::OrderRelease& release);
  void Mismatch(const v1::OrderMismatch& mismatch);
  void WantSave(const v1::RequestedSave& requested) { saves_.Want(requested); }
  // A rank fails, and with it the epoch.
  void Fail(const std::string& reason);
  // The daemon ended, and the next one has its memory.
  void EndEpochOfDaemonBefore();
  // One random rank gets on, if there is anything that it can do.
  void Work();
  // Its ranks get their shards from another worker of the epoch.
  void Rebuild(const SimulatedHeldJob& source);
  // The next announcement differs from the others'.
  void Deviate() { deviates_ = true; }

  v1::JobProgress Progress() const;
  std::vector<v1::WorkerEvent> Unacknowledged() const;
  v1::WorkerEvent Held() const;  // All that is known of it.

  SimulatedTruth& truth() const { return *truth_; }
  const std::shared_ptr<SimulatedPuts>& puts() const { return puts_; }
  Epoch epoch() const { return epoch_; }
  int64_t decided_step() const { return decided_step_; }
  bool is_running() const { return phase_ == Phase::kRunning; }
  bool has_begun() const { return has_begun_; }  // So that the shards were given values.
  bool lacks_values() const { return lacks_values_; }
  // Whether its memory is of no use in the epoch.
  bool IsVoid(const v1::PrepareEpoch& prepare) const;
  bool HoldsAll() const { return has_begun_ && !lacks_values_; }
  std::string Describe() const;  // For a person.

 private:
  enum class Phase { kNone, kPreparing, kPrepared, kRunning, kFailed };
  struct RankRun {
    int64_t step = 0;  // Being worked on.
    int64_t sequence = 0;
    bool voted = false;  // Has done this step's operations and waits for the others.
    uint64_t put = 0;    // `step` is the version that is to have it; 0: a trainer's step.
    std::optional<v1::OrderAnnouncement> pending;  // Waits for its release.
    std::optional<v1::StepReport> last_report;

    void BeginAt(int64_t new_step);
  };

  void EndEpoch();
  void WorkOn(int32_t rank, RankRun* run);
  void AnnounceNext(int32_t rank, RankRun* run);
  void VoteForStep(int32_t rank, RankRun* run);
  void FinishStep(int32_t rank, RankRun* run);
  void WorkOnPut(int32_t rank, RankRun* run);
  void FinishVersion(int32_t rank, RankRun* run);
  v1::WorkerEvent PreparedEvent() const;

  const std::string worker_;
  SimulatedTruth* const truth_;
  SimulatedDice* const dice_;
  const Emit emit_;
  SimulatedSaves saves_;
  const std::shared_ptr<SimulatedPuts> puts_ = std::make_shared<SimulatedPuts>();
  Phase phase_ = Phase::kNone;
  v1::Job job_;  // As it was prepared last.
  Epoch epoch_;
  int64_t first_step_ = 0;  // Of this epoch: the one that is recorded.
  int64_t decided_step_ = 0;
  bool has_begun_ = false;
  bool lacks_values_ = false;
  bool deviates_ = false;
  v1::WorkerEvent failure_;
  std::map<int32_t, RankRun> ranks_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_HELD_JOB_H_
