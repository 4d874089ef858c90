#include "coordinator/core/deleted_jobs.h"

namespace tessera::coordinator {

Creation DeletedJobs::Newest(const JobId& job) const {
  const auto it = newest_.find(job);
  return it == newest_.end() ? Creation() : it->second;
}

void DeletedJobs::Put(const JobId& job, Creation creation) {
  Forget(job);
  newest_[job] = creation;
  by_creation_[creation] = job;
}

void DeletedJobs::Forget(const JobId& job) {
  by_creation_.erase(Newest(job));
  newest_.erase(job);
}

std::vector<JobId> DeletedJobs::Surplus() const {
  std::vector<JobId> surplus;
  auto oldest = by_creation_.begin();
  for (size_t left = by_creation_.size(); left >= capacity_; --left)
    surplus.push_back((oldest++)->second);
  return surplus;
}

}  // namespace tessera::coordinator
