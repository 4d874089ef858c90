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
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "worker/agent/relay_sessions.h"
#include "worker/keeper/hosted_job.h"

namespace tessera {

class PutRelay {
 public:
  struct Options {
    DialOptions coordinator;
    std::string worker_id;
    std::string spool_folder;
    // Errors: Unavailable  the worker does not hold this generation of the job.
    std::function<absl::StatusOr<std::shared_ptr<HostedJob>>(const std::string& job_id,
                                                             int64_t generation)>
        find;
  };
  explicit PutRelay(Options options) : options_(std::move(options)) {}

  // As RelaySessions::Serve.
  void Serve(const v1::StagePut& command);
  // Ends all sessions, and withdraws what they have offered.
  void Stop() { sessions_.Stop(); }

 private:
  class Session;

  const Options options_;
  RelaySessions sessions_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_PUT_RELAY_H_
