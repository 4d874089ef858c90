#include "coordinator/service/live/job_places.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

bool JobPlaces::HasRoom(const JobId& job) const {
  const auto it = taken_.find(job);
  return it == taken_.end() || it->second < max_of_a_job_;
}

bool JobPlaces::TryEnter(const JobId& job) {
  absl::MutexLock lock(&mu_);
  if (!HasRoom(job)) return false;
  ++taken_[job];
  return true;
}

absl::Status JobPlaces::Enter(const JobId& job, absl::Time deadline,
                              absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto has_room = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return HasRoom(job); };
  // Nothing wakes this when the client goes, so it looks now and then.
  while (!AwaitWithDeadline(&mu_, absl::Condition(&has_room),
                            std::min(deadline, SteadyNow() + kPoll))) {
    if (cancelled()) return absl::CancelledError("the client is gone");
    if (SteadyNow() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("job '", job.value(), "': another client's copy takes too long"));
  }
  ++taken_[job];
  return absl::OkStatus();
}

void JobPlaces::Leave(const JobId& job) {
  absl::MutexLock lock(&mu_);
  const auto it = taken_.find(job);
  if (--it->second == 0) taken_.erase(it);
}

}  // namespace tessera::coordinator
