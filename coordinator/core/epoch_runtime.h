// What the coordinator knows of a job only while it runs: of the current epoch, the answers, the
// execution order, open steps and the first failure; of failed epochs, what was learned from them.
// Values; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_EPOCH_RUNTIME_H_
#define TESSERA_COORDINATOR_CORE_EPOCH_RUNTIME_H_

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_gather.h"
#include "coordinator/core/hand_over_state.h"
#include "coordinator/core/hang_watch.h"
#include "coordinator/core/member_registry.h"
#include "coordinator/core/order_validator.h"
#include "coordinator/core/step_ledger.h"
#include "coordinator/core/straggler_watch.h"

namespace tessera::coordinator {

// Why the epoch must end. The first failure counts.
struct EpochFailure {
  std::string reason;
  std::optional<OrderMismatch> mismatch;  // Sent to every worker of the epoch.
  int code = 0;                           // As RankFailure::code.
  EpochCause cause = EpochCause::kRankFailure;
};

// The progress of a rank with the save `number`.
struct SaveProgress {
  int64_t number = 0;
  int64_t written_bytes = 0, all_bytes = 0;
};

struct EpochRuntime {
  EpochRuntime() = default;
  EpochRuntime(Epoch epoch, const std::vector<RankPlacement>& placements, const JobSpecPtr& spec,
               Step committed_step)
      : epoch(epoch),
        gather(placements),
        order(spec->config.world_size, spec),
        ledger(spec->config.world_size, committed_step),
        hangs(spec->config.world_size),
        stragglers(spec->config.world_size) {}

  Epoch epoch;
  EpochGather gather;
  OrderValidator order;
  StepLedger ledger;
  std::map<int32_t, RankStatus> ranks;
  std::map<int32_t, RankStatus> last_seen;  // The same, or from an earlier epoch.
  std::map<int32_t, SaveProgress> saving;   // By rank.
  HangWatch hangs;
  StragglerWatch stragglers;
  std::map<Rank, std::string> missing, slow;  // Ranks that an event has named, with its text.
  std::optional<EpochFailure> failure;
  std::optional<absl::Time> preparing_since;
  // By rank: offers of trainers to hand this job over, and the ranks of this job that are ready for
  // the next phase of taking over another one.
  std::map<int32_t, HandOverOffer> offers;
  std::map<int32_t, TakeOver> take_overs;
};

// Workers on which a job is not placed for now: they refused it or did not prepare in time.
class AvoidedWorkers {
 public:
  void Add(const WorkerId& worker, Incarnation incarnation, absl::Time until) {
    workers_[worker] = {incarnation, until};
  }
  // Whether the worker was there.
  bool Remove(const WorkerId& worker) { return workers_.erase(worker) > 0; }
  // Forgets workers whose time is over, and workers that have restarted since.
  void Expire(const MemberRegistry& members, absl::Time now) {
    for (auto it = workers_.begin(); it != workers_.end();) {
      const bool over =
          now >= it->second.until || !members.IsLive(it->first, it->second.incarnation);
      it = over ? workers_.erase(it) : std::next(it);
    }
  }
  std::set<WorkerId> ids() const {
    std::set<WorkerId> ids;
    for (const auto& [worker, entry] : workers_) ids.insert(worker);
    return ids;
  }

 private:
  struct Entry {
    Incarnation incarnation;
    absl::Time until;
  };
  std::map<WorkerId, Entry> workers_;
};

// Delays the start of epochs that follow failures without a step in between, so that a job that
// cannot run does not spin.
//
//   delay(n-th failure without a step) = 0 for n = 1, else min(first_delay * 2^(n-2), 10 s)
class RestartPacer {
 public:
  explicit RestartPacer(absl::Duration first_delay) : first_delay_(first_delay) {}

  void Failed(bool made_progress, absl::Time now) {
    num_failures_ = made_progress ? 1 : num_failures_ + 1;
    const int doublings = std::min(num_failures_ - 2, 10);
    earliest_start_ =
        doublings < 0 ? now : now + std::min(first_delay_ * (1 << doublings), absl::Seconds(10));
  }
  bool MayStart(absl::Time now) const { return now >= earliest_start_; }

 private:
  absl::Duration first_delay_;
  int num_failures_ = 0;
  absl::Time earliest_start_ = absl::InfinitePast();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EPOCH_RUNTIME_H_
