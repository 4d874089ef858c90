// Says which ranks of running jobs hold the others up, and how:
//
//   heartbeats, announcements ──► HangWatch, StragglerWatch of each epoch ──► Look: events,
//                                                                             reasons, failures
//
// It makes no records, so that its findings are never rolled back. A failure that it marks is acted
// on by the next Tick. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_RANK_WATCH_H_
#define TESSERA_COORDINATOR_CORE_RANK_WATCH_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"

namespace tessera::coordinator {

class RankWatch {
 public:
  // At most so many ranks of a job are missing, and so many slow, by an event of their own.
  static constexpr size_t kMaxNamed = 8;

  // `state` must outlive it.
  explicit RankWatch(CoordinatorState* state) : state_(state) {}

  // The job is done: those of its ranks that were missing have arrived, and none is slow.
  static void EndOf(const JobId& id, const Job& job, EpochRuntime* runtime, Effects* effects);

  // Costs a look at two times for a job of which nothing was heard, and else one visit of each rank.
  void Look(absl::Time now, Effects* effects);

 private:
  // Whether ranks of the job can hold each other up.
  bool IsWatched(const JobId& id, const Job& job) const;
  void LookForMissing(const JobId& id, const Job& job, absl::Time now, Effects* effects);
  void LookForSlow(const JobId& id, const Job& job, Effects* effects);

  CoordinatorState* const state_;
  absl::Time last_look_ = absl::InfiniteFuture();  // Until the first one.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RANK_WATCH_H_
