// Admits or refuses a call: identifies the caller (net/caller_identity.h), checks that there is room
// for the call (call_limits.h) and that the caller may make it (coordinator/access/access_rules.h),
// and writes a line to the log for each call that changes something, and for those that are refused
// or fail, at most ten a minute for each client:
//
//   audit: uid:1000 at fd:17: DeleteJob job='gpt': OK
//
// Nothing of a call is read before it was admitted, so a refused call costs nothing.
//
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_GATE_H_
#define TESSERA_COORDINATOR_SERVICE_GATE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/access/access_rules.h"
#include "coordinator/service/call_limits.h"
#include "coordinator/service/call_watch.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/line_limit.h"
#include "grpcpp/server_context.h"
#include "net/caller_identity.h"

namespace tessera::coordinator {

class Gate {
 public:
  struct Times {
    absl::Duration request = absl::Seconds(10);  // For a client to send its request.
    absl::Duration reply = absl::Minutes(1);     // For a client to take a reply.
  };
  struct Limits {
    int max_calls = 1024;  // At a time, of each kind (call_limits.h).
    Times times;
    int64_t max_memory_bytes = 0;  // Of this process; 0: any.
  };

  // `host` and what `identities` refers to outlive this.
  Gate(CoordinatorHost* host, AccessRules rules, CallerIdentities identities, const Limits& limits);

  struct Call {
    grpc::ServerContextBase* context;
    absl::string_view name;  // e.g. "DeleteJob"
    JobId job = JobId();     // Of rights to a job.
  };
  struct Caller {
    std::string identity;
    bool is_operator = false;
    // Of the job, where the right is one to a job that there is: the caller may have no right to
    // a later job of this id.
    Generation generation = Generation();
  };

  // Errors: Unauthenticated     the caller cannot be identified
  //         FailedPrecondition  one of our programs, of another protocol version
  //         PermissionDenied    the caller does not have this right
  //         NotFound            there is no such job, of kRead and kChange; operators get in
  absl::StatusOr<Caller> Admit(const Call& call, Right right) const;
  struct Entered {
    std::string identity;
    CallLimits::Place place;
  };
  // Before anything of the call is read.
  // Errors: Unauthenticated, FailedPrecondition  as above
  //         PermissionDenied   a call of a worker, and the caller works for none
  //         Unavailable        the caller has too many calls
  absl::StatusOr<Entered> Enter(const Call& call, CallKind kind) const;
  // Logs `outcome`, with which something was read of the call, and returns it.
  absl::Status NoteRead(const Call& call, const std::string& identity,
                        const absl::Status& outcome) const;
  // Of a call that this worker makes; returns its identity. Errors: as above.
  absl::StatusOr<std::string> AdmitWorker(const Call& call, const std::string& worker) const;

  // Runs `body` where the caller has the right, logs what came of it, and returns that.
  absl::Status Change(const Call& call, Right right,
                      absl::FunctionRef<absl::Status(const Caller& caller)> body) const;
  // The same, of a call by which a worker changes something.
  absl::Status ChangeAsWorker(const Call& call, const std::string& worker,
                              absl::FunctionRef<absl::Status()> body) const;

  // Whether `job` is still the one that the caller was let in for.
  // Errors: NotFound  it was deleted meanwhile, whether or not there is another one of its id; and
  //         the view's own
  static absl::Status CheckSame(const absl::StatusOr<JobView>& job, const Caller& caller);

  const AccessRules& rules() const { return rules_; }
  const Times& times() const { return times_; }
  CallLimits* calls() const { return calls_.get(); }
  CallWatch* watch() const { return watch_.get(); }

 private:
  absl::StatusOr<std::string> Identify(const Call& call) const;
  absl::Status CheckJob(const Call& call, Right right, Caller* caller) const;
  absl::Status Note(const std::string& who, const Call& call, const absl::Status& outcome) const;
  absl::Status Refuse(const std::string& who, const Call& call, const absl::Status& why) const;

  CoordinatorHost* const host_;
  const AccessRules rules_;
  const CallerIdentities identities_;
  const Times times_;
  const std::unique_ptr<CallLimits> calls_;
  const std::unique_ptr<CallWatch> watch_;
  const std::unique_ptr<LineLimit> lines_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_GATE_H_
