#include "coordinator/service/job_waits.h"

#include <utility>

namespace tessera::coordinator {

JobWaits::Wait::Wait(JobWaits* waits, std::vector<JobId> jobs)
    : waits_(waits), jobs_(std::move(jobs)) {
  absl::MutexLock lock(&waits_->mu_);
  for (const JobId& job : jobs_) waits_->waits_[job].insert(this);
}

JobWaits::Wait::~Wait() {
  absl::MutexLock lock(&waits_->mu_);
  for (const JobId& job : jobs_) {
    const auto of_job = waits_->waits_.find(job);
    if (of_job == waits_->waits_.end()) continue;  // Named twice.
    of_job->second.erase(this);
    if (of_job->second.empty()) waits_->waits_.erase(of_job);
  }
}

bool JobWaits::Wait::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  AwaitWithTimeout(&mu_, absl::Condition(&has_changed_), timeout);
  // Reset before the caller looks again, so that a change during that look wakes the next wait.
  return std::exchange(has_changed_, false);
}

void JobWaits::Wait::Wake() {
  absl::MutexLock lock(&mu_);
  has_changed_ = true;
}

void JobWaits::WakeThoseOf(const JobId& job) {
  absl::MutexLock lock(&mu_);
  const auto of_job = waits_.find(job);
  if (of_job == waits_.end()) return;
  // Under mu_, so that no Wait is destroyed meanwhile.
  for (Wait* wait : of_job->second) wait->Wake();
}

void JobWaits::WakeAll() {
  absl::MutexLock lock(&mu_);
  for (const auto& [job, waits] : waits_) {
    for (Wait* wait : waits) wait->Wake();
  }
}

}  // namespace tessera::coordinator
