// Which creations of which jobs were deleted: what a worker holds of them, it is to drop. Bounded:
// the oldest are forgotten first, and a worker that comes back with such a job keeps it until
// somebody deletes it again. Copyable value; thread-compatible.
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

  // The newest creation of this id that was deleted; 0: none is known.
  Creation Newest(const JobId& job) const;
  void Put(const JobId& job, Creation creation);
  void Forget(const JobId& job);
  // Whom to forget before one more is put.
  std::vector<JobId> Surplus() const;

 private:
  size_t capacity_;
  std::map<JobId, Creation> newest_;
  std::map<Creation, JobId> by_creation_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_DELETED_JOBS_H_
