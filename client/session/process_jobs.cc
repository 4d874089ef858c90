#include "client/session/process_jobs.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tessera {
namespace {

struct Sessions {
  absl::Mutex mutex;
  std::map<std::string, int> by_job ABSL_GUARDED_BY(mutex);
};

Sessions& OfThisProcess() {
  static Sessions& sessions = *new Sessions;  // Never destroyed: they may end after main().
  return sessions;
}

}  // namespace

ProcessJob::ProcessJob(std::string job_id) : job_id_(std::move(job_id)) {
  Sessions& sessions = OfThisProcess();
  absl::MutexLock lock(&sessions.mutex);
  ++sessions.by_job[job_id_];
}

ProcessJob::~ProcessJob() {
  Sessions& sessions = OfThisProcess();
  absl::MutexLock lock(&sessions.mutex);
  const auto own = sessions.by_job.find(job_id_);
  if (--own->second == 0) sessions.by_job.erase(own);
}

bool ProcessJob::IsOnlyOne() {
  Sessions& sessions = OfThisProcess();
  absl::MutexLock lock(&sessions.mutex);
  return sessions.by_job.size() <= 1;
}

}  // namespace tessera
