#include "coordinator/service/gate.h"

#include <malloc.h>

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "coordinator/service/field_checks.h"
#include "job/field_limits.h"
#include "net/caller_version.h"

namespace tessera::coordinator {
namespace {

std::string WhatOf(const Gate::Call& call) {
  // The caller may be unknown, and the id of any size.
  constexpr size_t kMaxBytes = 64;
  const absl::string_view id = Utf8Prefix(call.job.value(), kMaxBytes);
  const std::string job = id.empty() ? "" : absl::StrCat(" job='", absl::CHexEscape(id), "'");
  return absl::StrCat(std::string(call.context->peer()), ": ", call.name, job);
}

// Whether more than five eighths are in use; the rest is for what arrives between two looks. Memory
// that is free but not returned to the system does not count, and is returned now and then: soon
// where the process has more than three quarters, since what is in use may grow beside it. It takes
// some 10 ms, in which others wait for the allocator.
bool HasTooMuchMemory(int64_t max_bytes, absl::Time* trimmed_at) {
  const int64_t limit = max_bytes / 8 * 5;
  const int64_t resident = ResidentBytes();
  if (max_bytes == 0 || resident <= limit) return false;
  const struct mallinfo2 info = mallinfo2();
  const bool is_too_much = static_cast<int64_t>(info.uordblks + info.hblkhd) > limit;
  const bool is_short = resident > max_bytes / 4 * 3;
  if (is_too_much && !is_short) return true;
  if (SteadyNow() - *trimmed_at >= (is_short ? absl::Milliseconds(250) : absl::Seconds(1))) {
    malloc_trim(0);
    *trimmed_at = SteadyNow();
  }
  return is_too_much;
}

}  // namespace

Gate::Gate(CoordinatorHost* host, AccessRules rules, CallerIdentities identities,
           const Limits& limits)
    : host_(host),
      rules_(std::move(rules)),
      identities_(std::move(identities)),
      times_(limits.times),
      calls_(std::make_unique<CallLimits>(limits.max_calls)),
      watch_(std::make_unique<CallWatch>(
          [max_bytes = limits.max_memory_bytes, trimmed_at = absl::InfinitePast()]() mutable {
            return HasTooMuchMemory(max_bytes, &trimmed_at);
          },
          [calls = calls_.get()] { calls->LetMoreIn(SteadyNow()); })),
      lines_(std::make_unique<LineLimit>()) {}

absl::Status Gate::Note(const std::string& who, const Call& call,
                        const absl::Status& outcome) const {
  if (!outcome.ok()) return Refuse(who, call, outcome);
  TESSERA_LOG(INFO, "audit: {} at {}: OK", who, WhatOf(call));
  return outcome;
}

absl::Status Gate::Refuse(const std::string& who, const Call& call, const absl::Status& why) const {
  const std::optional<LineLimit::Line> line = lines_->Take(who, SteadyNow());
  if (!line.has_value()) return why;
  std::string more;
  if (line->left_out > 0) more = absl::StrCat(" (", line->left_out, " before it were not logged)");
  if (line->is_last) more += " (further refusals of this client within a minute are only counted)";
  TESSERA_LOG(WARNING, "audit: {} at {}: {}{}", who, WhatOf(call), why.ToString(), more);
  return why;
}

absl::StatusOr<std::string> Gate::Identify(const Call& call) const {
  absl::StatusOr<std::string> identity = identities_.Of(*call.context);
  if (!identity.ok()) return Refuse("unknown", call, identity.status());
  // After the identity, so that the log names the caller that is refused.
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
  // CheckSame compares it later: the id may then name a new job of another owner.
  if (job.ok()) caller->generation = job->generation;
  if (caller->is_operator) return absl::OkStatus();  // The handler says what is wrong with it.
  absl::Status status = CheckJobId(call.job.value());
  if (status.ok()) status = job.status();
  // Who looks for a job that is not there does no harm.
  if (!status.ok() && right == Right::kRead) return status;
  if (status.ok()) status = rules_.Check(caller->identity, right, call.job.value(), job->owner);
  return status.ok() ? status : Refuse(caller->identity, call, status);
}

absl::Status Gate::CheckSame(const absl::StatusOr<JobView>& job, const Caller& caller) {
  RETURN_IF_ERROR(job.status());
  if (caller.generation == Generation() || job->generation == caller.generation)
    return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("job '", job->id.value(), "' was deleted meanwhile"));
}

absl::StatusOr<Gate::Entered> Gate::Enter(const Call& call, CallKind kind) const {
  ASSIGN_OR_RETURN(std::string identity, Identify(call));
  // Others must not take the places of workers.
  if (kind == CallKind::kOfWorker) {
    const absl::Status status = rules_.CheckIsWorker(identity);
    if (!status.ok()) return Refuse(identity, call, status);
  }
  absl::StatusOr<CallLimits::Place> place = calls_->Enter(identity, kind);
  if (!place.ok()) return Refuse(identity, call, place.status());
  return Entered{std::move(identity), *std::move(place)};
}

absl::Status Gate::NoteRead(const Call& call, const std::string& identity,
                            const absl::Status& outcome) const {
  // A caller that leaves is not worth a line.
  if (outcome.ok() || absl::IsInvalidArgument(outcome) || absl::IsCancelled(outcome))
    return outcome;
  return Refuse(identity, call, outcome);
}

absl::StatusOr<std::string> Gate::AdmitWorker(const Call& call, const std::string& worker) const {
  ASSIGN_OR_RETURN(std::string identity, Identify(call));
  absl::Status status = CheckWorkerId("worker_id", worker);
  if (status.ok()) status = rules_.CheckWorker(identity, worker);
  if (!status.ok()) return Refuse(identity, call, status);
  return identity;
}

absl::Status Gate::Change(const Call& call, Right right,
                          absl::FunctionRef<absl::Status(const Caller& caller)> body) const {
  ASSIGN_OR_RETURN(const Caller caller, Admit(call, right));
  return Note(caller.identity, call, body(caller));
}

absl::Status Gate::ChangeAsWorker(const Call& call, const std::string& worker,
                                  absl::FunctionRef<absl::Status()> body) const {
  ASSIGN_OR_RETURN(const std::string identity, AdmitWorker(call, worker));
  const std::string name = absl::StrCat(call.name, " worker=", worker);
  return Note(identity, {call.context, name}, body());
}

}  // namespace tessera::coordinator
