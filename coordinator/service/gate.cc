#include "coordinator/service/gate.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/service/field_checks.h"
#include "job/field_limits.h"
#include "net/caller_version.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

std::string WhatOf(const Gate::Call& call) {
  // Perhaps of a caller who is nobody, and of any size.
  constexpr size_t kMaxBytes = 64;
  const absl::string_view id = Utf8Prefix(call.job.value(), kMaxBytes);
  const std::string job = id.empty() ? "" : absl::StrCat(" job='", absl::CHexEscape(id), "'");
  return absl::StrCat(std::string(call.context->peer()), ": ", call.name, job);
}

absl::Status Note(const std::string& who, const Gate::Call& call, const absl::Status& outcome) {
  TESSERA_LOG(INFO, "audit: {} at {}: {}", who, WhatOf(call), outcome.ToString());
  return outcome;
}

absl::Status Refuse(absl::string_view who, const Gate::Call& call, const absl::Status& why) {
  TESSERA_LOG(WARNING, "audit: {} at {}: refused: {}", std::string(who), WhatOf(call),
              why.ToString());
  return why;
}

}  // namespace

absl::StatusOr<std::string> Gate::Identify(const Call& call) const {
  absl::StatusOr<std::string> identity = identities_.Of(*call.context);
  if (!identity.ok()) return Refuse("unknown", call, identity.status());
  const absl::Status version = CheckCaller(*call.context);
  if (!version.ok()) return Refuse(*identity, call, version);
  return identity;
}

absl::StatusOr<Gate::Caller> Gate::Admit(const Call& call, Right right) const {
  ASSIGN_OR_RETURN(std::string identity, Identify(call));
  Caller caller{std::move(identity)};
  caller.is_operator = rules_.IsOperator(caller.identity);
  if (right == Right::kRead || right == Right::kChange) {
    RETURN_IF_ERROR(CheckJob(call, right, &caller));
    return caller;
  }
  const absl::Status status = rules_.Check(caller.identity, right);
  if (!status.ok()) return Refuse(caller.identity, call, status);
  return caller;
}

absl::Status Gate::CheckJob(const Call& call, Right right, Caller* caller) const {
  const absl::StatusOr<JobView> job = host_->GetJob(call.job);
  if (job.ok()) caller->creation = job->creation;
  if (caller->is_operator) return absl::OkStatus();  // The handler says what is wrong with it.
  RETURN_IF_ERROR(CheckJobId(call.job.value()));
  RETURN_IF_ERROR(job.status());
  const absl::Status status = rules_.Check(caller->identity, right, call.job.value(), job->owner);
  return status.ok() ? status : Refuse(caller->identity, call, status);
}

absl::Status Gate::CheckSame(const absl::StatusOr<JobView>& job, const Caller& caller) {
  RETURN_IF_ERROR(job.status());
  if (caller.creation == Creation() || job->creation == caller.creation) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("job '", job->id.value(), "' was deleted meanwhile"));
}

absl::Status Gate::CheckKnown(const Call& call) const { return Identify(call).status(); }

absl::StatusOr<std::string> Gate::AdmitWorker(const Call& call, const std::string& worker) const {
  ASSIGN_OR_RETURN(std::string identity, Identify(call));
  RETURN_IF_ERROR(CheckWorkerId("worker_id", worker));
  const absl::Status status = rules_.CheckWorker(identity, worker);
  if (!status.ok()) return Refuse(identity, call, status);
  return identity;
}

grpc::Status Gate::Change(const Call& call, Right right,
                          absl::FunctionRef<absl::Status(const Caller& caller)> body) const {
  const absl::StatusOr<Caller> caller = Admit(call, right);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  return ToGrpcStatus(Note(caller->identity, call, body(*caller)));
}

grpc::Status Gate::ChangeAsWorker(const Call& call, const std::string& worker,
                                  absl::FunctionRef<absl::Status()> body) const {
  const absl::StatusOr<std::string> identity = AdmitWorker(call, worker);
  if (!identity.ok()) return ToGrpcStatus(identity.status());
  const std::string name = absl::StrCat(call.name, " worker=", worker);
  return ToGrpcStatus(Note(*identity, {call.context, name}, body()));
}

}  // namespace tessera::coordinator
