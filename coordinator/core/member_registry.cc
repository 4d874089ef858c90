#include "coordinator/core/member_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/same_secret.h"

namespace tessera::coordinator {
namespace {

absl::Status Stale(const WorkerId& worker, Incarnation given, Incarnation current) {
  return absl::FailedPreconditionError(absl::StrCat("worker '", worker.value(), "': incarnation ",
                                                    given.value(), " is stale; ", current.value(),
                                                    " is registered: another process has this id, "
                                                    "or this one has to be restarted"));
}

}  // namespace

absl::Status MemberRegistry::CheckRegister(const WorkerId& worker, const Member& member) const {
  const Member* known = Find(worker);
  if (known == nullptr || known->incarnation < member.incarnation) return absl::OkStatus();
  // Another process has the id by now. This one must not get the ranks back.
  if (member.incarnation < known->incarnation) {
    return Stale(worker, member.incarnation, known->incarnation);
  }
  if (absl::Status status = CheckKey(worker, member.incarnation, member.key); !status.ok())
    return status;
  // Ranks may already be placed on the devices that this life had at first.
  if (known->num_devices != member.num_devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker '", worker.value(), "': incarnation ", member.incarnation.value(),
        " registered with ", known->num_devices, " devices before, now with ", member.num_devices));
  }
  return absl::OkStatus();
}

absl::Status MemberRegistry::CheckCurrent(const WorkerId& worker, Incarnation incarnation) const {
  const Member* known = Find(worker);
  if (known == nullptr || known->incarnation < incarnation) {
    return absl::NotFoundError(absl::StrCat("worker '", worker.value(), "', incarnation ",
                                            incarnation.value(), ": not registered"));
  }
  if (incarnation < known->incarnation) return Stale(worker, incarnation, known->incarnation);
  return absl::OkStatus();
}

Incarnation MemberRegistry::IncarnationOf(const WorkerId& worker, const std::string& key) const {
  const Member* known = Find(worker);
  // Lives are counted here, because a worker's clock may be set back.
  if (known == nullptr) return Incarnation(1);
  return IsSameSecret(known->key, key) ? known->incarnation
                                       : Incarnation(known->incarnation.value() + 1);
}

absl::Status MemberRegistry::CheckKey(const WorkerId& worker, Incarnation incarnation,
                                      const std::string& key) const {
  const Member* known = Find(worker);
  if (known == nullptr || known->incarnation != incarnation || IsSameSecret(known->key, key))
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("worker '", worker.value(), "', incarnation ", incarnation.value(),
                   ": this is another process than the one that registered: each worker needs an "
                   "id of its own; if this is the only one with this id, restart it"));
}

const Member* MemberRegistry::Find(const WorkerId& worker) const {
  auto it = members_.find(worker);
  return it == members_.end() ? nullptr : &it->second;
}

bool MemberRegistry::IsLive(const WorkerId& worker, Incarnation incarnation) const {
  const Member* member = Find(worker);
  return member != nullptr && !member->lost && member->incarnation == incarnation;
}

absl::Duration Liveness::SilentFor(const WorkerId& worker, absl::Time now) const {
  auto it = last_heard_.find(worker);
  return it == last_heard_.end() ? absl::ZeroDuration()
                                 : std::max(now - it->second, absl::ZeroDuration());
}

absl::Duration Liveness::Observe(absl::Time now) {
  absl::Duration pause;
  if (last_observed_.has_value() && now - *last_observed_ > timeout_ / 2)
    pause = now - *last_observed_;
  last_observed_ = now;
  // As if there had been no pause, but never later than now.
  for (auto& [worker, heard] : last_heard_) heard = std::min(heard + pause, now);
  return pause;
}

std::vector<WorkerId> Liveness::Silent(absl::Time now) const {
  std::vector<WorkerId> silent;
  for (const auto& [worker, heard] : last_heard_) {
    if (now - heard >= timeout_) silent.push_back(worker);
  }
  return silent;
}

}  // namespace tessera::coordinator
