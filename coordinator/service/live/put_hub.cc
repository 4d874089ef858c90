#include "coordinator/service/live/put_hub.h"

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {

absl::Status PutHub::Enter(const JobId& job) {
  absl::MutexLock lock(&mu_);
  if (jobs_.insert(job).second) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", job.value(), "': another client sets its values"));
}

void PutHub::Leave(const JobId& job) {
  absl::MutexLock lock(&mu_);
  jobs_.erase(job);
}

void PutHub::Expect(const std::string& session, std::shared_ptr<PutLine> line) {
  absl::MutexLock lock(&mu_);
  const std::pair<std::string, std::string> key(session, line->worker());
  lines_[key] = std::move(line);
}

void PutHub::Forget(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  lines_.erase({session, worker});
}

std::shared_ptr<PutLine> PutHub::Find(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  const auto it = lines_.find({session, worker});
  return it == lines_.end() ? nullptr : it->second;
}

}  // namespace tessera::coordinator
