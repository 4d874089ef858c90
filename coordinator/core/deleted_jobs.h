// The deleted generations of jobs. A worker that still holds one must drop it. Bounded: the oldest
// are forgotten first, and a worker that returns with such a job keeps it until the job is deleted
// again. Copyable value; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_DELETED_JOBS_H_
#define TESSERA_COORDINATOR_CORE_DELETED_JOBS_H_

#include <cstddef>
#include <map>
#include <vector>

#include "base/ids.h"

namespace tessera::coordinator {

class DeletedJobs {
 public:
  explicit DeletedJobs(size_t capacity = 10000) : capacity_(capacity) {}

  // The newest deleted generation of this id; 0: none is known.
  Generation Newest(const JobId& job) const;
  void Put(const JobId& job, Generation generation);
  void Forget(const JobId& job);
  // The jobs to forget before another one is put.
  std::vector<JobId> Surplus() const;

 private:
  size_t capacity_;
  std::map<JobId, Generation> newest_;
  std::map<Generation, JobId> by_generation_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_DELETED_JOBS_H_
