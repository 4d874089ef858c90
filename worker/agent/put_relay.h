// Takes this worker's part of the values that clients set in jobs from the coordinator, and has the
// job's ranks vote for them.
//
//   StagePut ──► a thread: dials, says hello ──► stage / ready ──► pieces ──► seal / staged
//                ──► offer ──► looks now and then: applied, void or over
//                    another one reads the stream meanwhile: withdraw, or its end
//
// Thread-safe.
#ifndef TESSERA_WORKER_AGENT_PUT_RELAY_H_
#define TESSERA_WORKER_AGENT_PUT_RELAY_H_

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "worker/keeper/hosted_job.h"

namespace tessera {

class PutRelay {
 public:
  static constexpr size_t kMaxSessions = 16;

  struct Options {
    DialOptions coordinator;
    std::string worker_id;
    std::string spool_folder;
    // Errors: Unavailable  the worker does not hold this creation of the job.
    std::function<absl::StatusOr<std::shared_ptr<HostedJob>>(const std::string& job_id,
                                                             int64_t creation)>
        find;
  };
  explicit PutRelay(Options options);
  ~PutRelay();  // Stop().

  // Returns at once. Where no thread can be made, or kMaxSessions are served, the session is not
  // opened, and the coordinator's wait for it ends.
  void Serve(const v1::StagePut& command);
  // Ends all sessions, and withdraws what they have offered.
  void Stop();

 private:
  class Session;

  const Options options_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::unique_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_PUT_RELAY_H_
