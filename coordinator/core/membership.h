// The workers: their registrations, lives and streams, and which of them answer.
//
// A restarted worker's new life begins with its first stream. Until then it is an arrival, because
// its registration may be a late one, from a process that has ended since. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_MEMBERSHIP_H_
#define TESSERA_COORDINATOR_CORE_MEMBERSHIP_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/events.h"
#include "coordinator/core/member_registry.h"

namespace tessera::coordinator {

class Membership {
 public:
  // Both must outlive it. A worker that comes or returns may let jobs advance.
  Membership(CoordinatorState* state, EpochProtocol* epochs);

  // With the errors of the methods of Coordinator of these names.
  absl::Status RegisterWorker(const WorkerId& worker, const Member& member, absl::Time now,
                              Effects* effects);
  Incarnation IncarnationOf(const WorkerId& worker, const std::string& key) const;
  absl::Status CheckKey(const WorkerId& worker, Incarnation incarnation,
                        const std::string& key) const;
  absl::Duration SilentFor(const WorkerId& worker, absl::Time now) const {
    return liveness_.SilentFor(worker, now);
  }
  absl::Status Connect(const Sender& sender, absl::Time now, Effects* effects);
  void Disconnected(const WorkerId& worker) { away_.insert(worker); }

  // Checks the sender of an event, records that it is alive, and readmits it if it was lost.
  // Errors: as MemberRegistry::CheckCurrent
  absl::Status Hear(const Sender& sender, absl::Time now, Effects* effects);
  void HeardAll(absl::Time now);  // Each worker gets the full timeout, counted from `now`.
  // As Liveness::Observe. Call it before DeclareLost.
  absl::Duration Observe(absl::Time now) { return liveness_.Observe(now); }
  void DeclareLost(absl::Time now, Effects* effects);  // The workers that are silent for too long.
  void ForgetLostMembers(Effects* effects);            // Those on which no job has a rank.

 private:
  // Errors: AlreadyExists  an older life of the worker is connected
  absl::Status CheckMayFollow(const WorkerId& worker) const;
  const Member* FindArrival(const WorkerId& worker, Incarnation incarnation) const;
  void BeginLife(const WorkerId& worker, Member member, absl::Time now, Effects* effects);

  CoordinatorState* const state_;
  EpochProtocol* const epochs_;
  Liveness liveness_;
  std::set<WorkerId> away_;  // No stream since they registered, or it has ended.
  // By worker: lives that are registered and have not begun.
  std::map<WorkerId, std::map<Incarnation, Member>> arrivals_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_MEMBERSHIP_H_
