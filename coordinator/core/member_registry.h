// Which workers there are: devices, address, incarnation, and whether a worker is lost. Copyable
// value, thread-compatible. When a worker was last heard of is the Liveness's matter, below,
// because it does not survive a restart.
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
  std::string data_host;  // By which ranks of other workers reach its own; empty: they do not.
  int32_t max_ranks_of_job = 0;  // 0: as many as it has devices.
  std::string device;            // For a person; empty: the processor.
  int64_t memory_bytes = 0;      // Of its host, for jobs; 0: it does not say.
  std::string key;               // Of this life: nobody without it goes on with it.
  bool lost = false;             // Not heard of for the timeout; its ranks have been given up.
};

class MemberRegistry {
 public:
  // Whether `member` may register now.
  // Errors: FailedPrecondition  a newer incarnation is registered
  //         InvalidArgument     this incarnation registered with another number of devices
  //         PermissionDenied    this incarnation has another key
  absl::Status CheckRegister(const WorkerId& worker, const Member& member) const;
  // Whether a stream or event of (worker, incarnation) counts.
  // Errors: NotFound            not registered, or only with an older incarnation
  //         FailedPrecondition  a newer incarnation is registered
  absl::Status CheckCurrent(const WorkerId& worker, Incarnation incarnation) const;
  // The number of the worker's life that has `key`: of its last one, or the next.
  Incarnation IncarnationOf(const WorkerId& worker, const std::string& key) const;
  // Errors: PermissionDenied  it is this worker's last life, with another key
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

// Who has been silent for too long: a pure function of now and of when each was last heard.
//
// A pause of the coordinator itself (longer than half the timeout between two Observe calls) is
// not held against anybody: the workers could not have been heard meanwhile.
class Liveness {
 public:
  explicit Liveness(absl::Duration timeout) : timeout_(timeout) {}

  void Heard(const WorkerId& worker, absl::Time now) { last_heard_[worker] = now; }
  void Forget(const WorkerId& worker) { last_heard_.erase(worker); }
  // Since `worker` was last heard of; 0 for one that never was.
  absl::Duration SilentFor(const WorkerId& worker, absl::Time now) const;
  // To be called regularly, before Silent. Returns how long a pause of the coordinator was that has
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
