// The registered workers: devices, address, incarnation, and whether a worker is lost. Copyable
// value; thread-compatible. When a worker was last heard of is kept by Liveness, below, because it
// does not survive a restart.
#ifndef TESSERA_COORDINATOR_CORE_MEMBER_REGISTRY_H_
#define TESSERA_COORDINATOR_CORE_MEMBER_REGISTRY_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace tessera::coordinator {

struct Member {
  Incarnation incarnation;
  int32_t num_devices = 0;
  std::string address;
  std::string data_host;  // Where ranks of other workers reach its ranks; empty: they do not.
  int32_t max_ranks_of_job = 0;  // 0: as many as it has devices.
  std::string device;            // Of its ranks' memory, for display; empty: the host.
  int64_t memory_bytes = 0;      // Host memory for jobs; 0: not reported.
  std::string key;               // Secret of this life, which only its process knows.
  bool lost = false;             // Silent for the timeout; its ranks have been given up.
};

class MemberRegistry {
 public:
  // Whether `member` may register now.
  // Errors: FailedPrecondition  a newer incarnation is registered
  //         InvalidArgument     this incarnation registered with another number of devices
  //         PermissionDenied    this incarnation has another key
  absl::Status CheckRegister(const WorkerId& worker, const Member& member) const;
  // Whether a stream or event of (worker, incarnation) is accepted.
  // Errors: NotFound            not registered, or only with an older incarnation
  //         FailedPrecondition  a newer incarnation is registered
  absl::Status CheckCurrent(const WorkerId& worker, Incarnation incarnation) const;
  // The incarnation that has `key`: the current one, or else the next.
  Incarnation IncarnationOf(const WorkerId& worker, const std::string& key) const;
  // Errors: PermissionDenied  this is the worker's current life, with another key
  absl::Status CheckKey(const WorkerId& worker, Incarnation incarnation,
                        const std::string& key) const;

  void Put(const WorkerId& worker, Member member) { members_[worker] = std::move(member); }
  void Forget(const WorkerId& worker) { members_.erase(worker); }

  const Member* Find(const WorkerId& worker) const;
  // Registered, not lost, and still the life that `incarnation` names.
  bool IsLive(const WorkerId& worker, Incarnation incarnation) const;
  const std::map<WorkerId, Member>& members() const { return members_; }

 private:
  std::map<WorkerId, Member> members_;
};

// Finds the workers that have been silent for too long. A pure function of now and of when each
// worker was last heard.
//
// A pause of the coordinator itself (longer than half the timeout between two Observe calls) does
// not count as silence, because no worker could be heard during it.
class Liveness {
 public:
  explicit Liveness(absl::Duration timeout) : timeout_(timeout) {}

  void Heard(const WorkerId& worker, absl::Time now) { last_heard_[worker] = now; }
  void Forget(const WorkerId& worker) { last_heard_.erase(worker); }
  // Since `worker` was last heard of; 0 for one that never was.
  absl::Duration SilentFor(const WorkerId& worker, absl::Time now) const;
  // Call it regularly, before Silent. Returns the length of the pause of the coordinator that has
  // just ended; 0: there was none.
  absl::Duration Observe(absl::Time now);
  // Workers last heard `timeout` or longer before `now`, in id order.
  std::vector<WorkerId> Silent(absl::Time now) const;

 private:
  absl::Duration timeout_;
  std::optional<absl::Time> last_observed_;
  std::map<WorkerId, absl::Time> last_heard_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_MEMBER_REGISTRY_H_
