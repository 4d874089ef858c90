// What has really become of one job of a simulation, whatever the coordinator believes; and what
// must never differ from it. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_TRUTH_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_TRUTH_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "coordinator/core/effects.h"
#include "coordinator/core/events.h"
#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_put_truth.h"
#include "coordinator/service/simulated_save_truth.h"

namespace tessera::coordinator {

class SimulatedTruth {
 public:
  SimulatedTruth(const JobSpecRecord& made, SimulatedDice* dice)
      : id_(made.job),
        generation_(made.generation),
        spec_(made.spec),
        dice_(dice),
        saves_(made.spec->config.world_size, dice),
        puts_(made.spec->config.world_size) {}

  // --- the ranks' side ---
  // The rank waits to do this.
  void Announce(const OrderAnnouncement& event);
  // What a rank votes for with a step of which it has done all operations.
  struct Vote {
    int64_t save = 0;        // 0: for none.
    bool is_saving = false;  // It is not through with an earlier one.
    uint64_t put = 0;        // 0: for none.
  };
  void Take(Epoch epoch, int64_t step, int32_t rank, const Vote& vote);
  // Whether all ranks of the epoch have voted for it: then it is decided.
  bool IsDecided(Epoch epoch, int64_t step) const;
  // The put that all ranks voted for with the step; 0: for none. Its version is the next one.
  uint64_t AgreedPut(Epoch epoch, int64_t step) const;
  // The rank votes for that version.
  void VoteForPut(Epoch epoch, int64_t step, int32_t rank, bool can_read);
  // A rank's trainer was told that the step is taken.
  void Finish(int64_t step) { finished_ = std::max(finished_, step); }
  // A worker with ranks of it ended, and its memory with it.
  void LoseMemory();
  // Its owner has asked for its deletion.
  void Delete() { is_deleted_ = true; }

  // A worker begins an epoch.
  void Begin(Epoch epoch, int64_t resume_step);
  // The coordinator is one of the past, with an older copy of its journal.
  void GoBack();
  // That one knows this of the job.
  void ComeBackAs(const JobView& view);

  // --- the coordinator's side: fails the test where it says what is not so ---
  void CheckView(const JobView& view);
  // A worker frees what it has of it.
  void CheckDrop(bool has_begun, int64_t decided_step);
  void CheckRelease(const OrderRelease& release) const;
  void CheckStart(const StartEpoch& start);

  SimulatedSaveTruth& saves() { return saves_; }
  SimulatedPutTruth& puts() { return puts_; }
  const JobId& id() const { return id_; }
  Generation generation() const { return generation_; }
  int32_t world_size() const { return spec_->config.world_size; }
  // Each group of ranks has all shards and a worker of its own.
  bool is_hybrid() const { return spec_->config.shard_group_size > 0; }
  int64_t decided() const { return decided_; }    // The last step.
  int64_t finished() const { return finished_; }  // The last step that some trainer was told of.
  bool has_lost_memory() const { return has_lost_memory_; }
  int64_t shown_committed() const { return shown_committed_; }
  int64_t shown_epoch() const { return shown_epoch_; }

 private:
  const JobId id_;
  const Generation generation_;
  const JobSpecPtr spec_;
  SimulatedDice* const dice_;
  SimulatedSaveTruth saves_;
  SimulatedPutTruth puts_;
  int64_t decided_ = 0;
  int64_t finished_ = 0;
  bool has_lost_memory_ = false;
  bool is_deleted_ = false;
  bool has_gone_back_ = false;
  struct Votes {
    uint32_t ranks = 0;  // One bit each.
    std::set<int64_t> saves;
    std::set<uint64_t> puts;
    bool is_saving = false;
  };
  std::map<std::pair<Epoch, int64_t>, Votes> votes_;  // By step.
  std::map<std::tuple<Epoch, Step, int64_t>, std::map<Rank, OrderEntry>> announced_;
  std::map<Epoch, Step> resume_steps_;  // As the coordinator said.
  std::map<Epoch, int64_t> begun_;      // As workers began.
  int64_t shown_committed_ = 0, shown_epoch_ = 0;
  JobState shown_state_ = JobState::kWaiting;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_TRUTH_H_
