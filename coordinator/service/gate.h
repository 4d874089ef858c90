// Lets a call in, or not: who makes it (net/caller_identity.h), whether he may
// (coordinator/access/access_rules.h), and a line in the log for each that changes something and
// each that is refused:
//
//   audit: uid:1000 at fd:17: DeleteJob job='gpt': OK
//
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_GATE_H_
#define TESSERA_COORDINATOR_SERVICE_GATE_H_

#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/access/access_rules.h"
#include "coordinator/service/coordinator_host.h"
#include "grpcpp/server_context.h"
#include "net/caller_identity.h"

namespace tessera::coordinator {

class Gate {
 public:
  // `host` and what `identities` refers to outlive this.
  Gate(CoordinatorHost* host, AccessRules rules, CallerIdentities identities)
      : host_(host), rules_(std::move(rules)), identities_(std::move(identities)) {}

  struct Call {
    const grpc::ServerContextBase* context;
    absl::string_view name;  // e.g. "DeleteJob"
    JobId job = JobId();     // Of rights to a job.
  };
  struct Caller {
    std::string identity;
    bool is_operator = false;
    // Of the job, where the right is one to a job that there is: he may have no right to a later
    // one of its id.
    Creation creation = Creation();
  };

  // Errors: Unauthenticated     nobody knows who calls
  //         FailedPrecondition  a program of ours of another protocol
  //         PermissionDenied    he has not this right
  //         NotFound            there is no such job, of kRead and kChange; operators get in
  absl::StatusOr<Caller> Admit(const Call& call, Right right) const;
  // Before a stream's first message is waited for, which says of what the call is.
  // Errors: Unauthenticated, FailedPrecondition  as above
  absl::Status CheckKnown(const Call& call) const;
  // Of a call that this worker makes; returns its identity. Errors: as above.
  absl::StatusOr<std::string> AdmitWorker(const Call& call, const std::string& worker) const;

  // Runs `body` where the caller has the right, logs what came of it, and returns that.
  grpc::Status Change(const Call& call, Right right,
                      absl::FunctionRef<absl::Status(const Caller& caller)> body) const;
  // The same, of a call by which a worker changes something.
  grpc::Status ChangeAsWorker(const Call& call, const std::string& worker,
                              absl::FunctionRef<absl::Status()> body) const;

  // Whether `job` is still the one that the caller was let in for.
  // Errors: NotFound  it was deleted meanwhile, whether or not there is another one of its id; and
  //         the view's own
  static absl::Status CheckSame(const absl::StatusOr<JobView>& job, const Caller& caller);

  const AccessRules& rules() const { return rules_; }

 private:
  absl::StatusOr<std::string> Identify(const Call& call) const;
  absl::Status CheckJob(const Call& call, Right right, Caller* caller) const;

  CoordinatorHost* const host_;
  const AccessRules rules_;
  const CallerIdentities identities_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_GATE_H_
