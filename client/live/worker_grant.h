// A worker's own leave to map a job's state, for as long as this is there: a connection to its
// descriptor socket, at which no coordinator is asked (docs/adr/0057).
#ifndef TESSERA_CLIENT_LIVE_WORKER_GRANT_H_
#define TESSERA_CLIENT_LIVE_WORKER_GRANT_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "client/live/map_grant.h"
#include "client/live/mapped_source.h"
#include "proto/live_state.pb.h"

namespace tessera {

// Thread-safe once it is open.
class WorkerGrant : public MapGrant {
 public:
  // `source` becomes what was given. Errors, naming the worker:
  //   NotFound            it has no such job, or no name of it matches
  //   InvalidArgument     a query out of bounds; an address that is not a Unix socket's
  //   FailedPrecondition  it is not on this host, or another user's; it has not all ranks of the
  //                       job; what is requested is not in memory in that form
  //   ResourceExhausted   the limit of maps of the job is reached; no descriptors or memory
  //   Unavailable         it does not answer, or is too old for clients to ask it
  //   DataLoss            the reply is malformed
  static absl::StatusOr<std::unique_ptr<WorkerGrant>> Open(const std::string& worker_address,
                                                           const v1::LiveStateQuery& query,
                                                           std::unique_ptr<MappedSource>* source);

  bool has_ended() const override { return !why_ended().ok(); }
  // A look at the socket.
  absl::Status why_ended() const override;

 private:
  WorkerGrant(std::string who, UniqueFd socket)
      : who_(std::move(who)), socket_(std::move(socket)) {}
  absl::Status Ask(const v1::LiveStateQuery& query, std::unique_ptr<MappedSource>* source);

  const std::string who_;
  const UniqueFd socket_;
  mutable absl::Mutex mu_;
  mutable absl::Status why_ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_WORKER_GRANT_H_
