// All puts in progress: which streams are expected. A job has one put at a time. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_HUB_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_HUB_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "coordinator/service/live/put_line.h"

namespace tessera::coordinator {

class PutHub {
 public:
  // Errors: ResourceExhausted  the job has one already.
  absl::Status Enter(const JobId& job);
  void Leave(const JobId& job);

  // Accepts the worker's stream of this session, until Forget.
  void Expect(const std::string& session, std::shared_ptr<PutLine> line);
  void Forget(const std::string& session, const std::string& worker);
  // Null: no put expects it.
  std::shared_ptr<PutLine> Find(const std::string& session, const std::string& worker);

 private:
  absl::Mutex mu_;
  std::set<JobId> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, std::string>, std::shared_ptr<PutLine>> lines_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_HUB_H_
