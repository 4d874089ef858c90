// A worker's leave to map its part of a job's state, for as long as this is there: a connection to
// its descriptor socket (docs/adr/0057), and the memory that came over it. Only the worker's own
// user and root get any.
#ifndef TESSERA_CLIENT_LIVE_WORKER_GRANT_H_
#define TESSERA_CLIENT_LIVE_WORKER_GRANT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "client/live/mapped_source.h"
#include "proto/live_map.pb.h"
#include "proto/live_state.pb.h"

namespace tessera {

// Thread-safe once it is open.
class WorkerGrant {
 public:
  // Errors, naming the worker:
  //   NotFound            it has no such job, or no name of it matches
  //   InvalidArgument     a query out of bounds; an address that is not a Unix socket's
  //   FailedPrecondition  it is not on this node, or another user's; what is requested is not in
  //                       memory in that form
  //   ResourceExhausted   the limit of maps of the job is reached; no descriptors or memory
  //   Unavailable         it does not answer
  //   DataLoss            the reply is malformed
  static absl::StatusOr<std::unique_ptr<WorkerGrant>> Open(const std::string& worker_address,
                                                           const v1::LiveStateQuery& query);

  const std::string& who() const { return who_; }              // For errors.
  const v1::LiveMapAnswer& answer() const { return answer_; }  // Without `given`.
  const MappedSource& source() const { return *source_; }
  // Why nothing newer comes; OK: it does. A look at the socket.
  absl::Status why_ended() const;

 private:
  WorkerGrant(std::string who, UniqueFd socket)
      : who_(std::move(who)), socket_(std::move(socket)) {}
  absl::Status Ask(const v1::LiveStateQuery& query);

  const std::string who_;
  const UniqueFd socket_;
  v1::LiveMapAnswer answer_;
  std::unique_ptr<MappedSource> source_;
  mutable absl::Mutex mu_;
  mutable absl::Status why_ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_WORKER_GRANT_H_
