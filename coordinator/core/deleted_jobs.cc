#include "coordinator/core/deleted_jobs.h"

namespace tessera::coordinator {

Generation DeletedJobs::Newest(const JobId& job) const {
  const auto it = newest_.find(job);
  return it == newest_.end() ? Generation() : it->second;
}

void DeletedJobs::Put(const JobId& job, Generation generation) {
  Forget(job);
  newest_[job] = generation;
  by_generation_[generation] = job;
}

void DeletedJobs::Forget(const JobId& job) {
  // Before newest_, which still has the key.
  by_generation_.erase(Newest(job));
  newest_.erase(job);
}

std::vector<JobId> DeletedJobs::Surplus() const {
  std::vector<JobId> surplus;
  auto oldest = by_generation_.begin();
  // Leaves room for the one that is about to be put.
  for (size_t left = by_generation_.size(); left >= capacity_; --left)
    surplus.push_back((oldest++)->second);
  return surplus;
}

}  // namespace tessera::coordinator
