#include "coordinator/service/live/live_hub.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

absl::Status LiveHub::Enter(const JobId& job) {
  absl::MutexLock lock(&mu_);
  int& readings = readings_[job];
  if (readings == kMaxReadingsOfAJob) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job '", job.value(), "': ", kMaxReadingsOfAJob, " clients read its state already"));
  }
  ++readings;
  return absl::OkStatus();
}

void LiveHub::Leave(const JobId& job) {
  absl::MutexLock lock(&mu_);
  const auto it = readings_.find(job);
  if (--it->second == 0) readings_.erase(it);
}

absl::Status LiveHub::TakeTurn(const JobId& job, absl::Time deadline,
                               absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto is_free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return turns_.count(job) == 0; };
  while (!AwaitWithDeadline(&mu_, absl::Condition(&is_free),
                            std::min(deadline, SteadyNow() + kPoll))) {
    if (cancelled()) return absl::CancelledError("the reader is gone");
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("job '", job.value(), "': another client's copy takes too long"));
    }
  }
  turns_.insert(job);
  return absl::OkStatus();
}

void LiveHub::EndTurn(const JobId& job) {
  absl::MutexLock lock(&mu_);
  turns_.erase(job);
}

std::string LiveHub::NewSession() {
  std::random_device random;
  std::string session;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&session, absl::Hex(random(), absl::kZeroPad8));
  return session;
}

void LiveHub::Expect(const std::string& session, std::shared_ptr<LiveLine> line) {
  absl::MutexLock lock(&mu_);
  const std::pair<std::string, std::string> key(session, line->worker());
  lines_[key] = std::move(line);
}

void LiveHub::Forget(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  lines_.erase({session, worker});
}

std::shared_ptr<LiveLine> LiveHub::Find(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  const auto it = lines_.find({session, worker});
  return it == lines_.end() ? nullptr : it->second;
}

}  // namespace tessera::coordinator
