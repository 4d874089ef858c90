#include "coordinator/service/events_service.h"

#include <map>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/core/event_log.h"
#include "coordinator/service/field_checks.h"
#include "job/field_limits.h"

namespace tessera::coordinator {
namespace {

// Of a page: what a client takes in one message, and what the coordinator copies at a time.
constexpr int kMaxPageEvents = 1000;
constexpr size_t kMaxPageBytes = 1 << 20;

v1::EventKind EncodeKind(EventKind kind) {
  switch (kind) {
    case EventKind::kJobCreated:
      return v1::EVENT_KIND_JOB_CREATED;
    case EventKind::kJobState:
      return v1::EVENT_KIND_JOB_STATE;
    case EventKind::kJobDeleted:
      return v1::EVENT_KIND_JOB_DELETED;
    case EventKind::kRankMissing:
      return v1::EVENT_KIND_RANK_MISSING;
    case EventKind::kRankArrived:
      return v1::EVENT_KIND_RANK_ARRIVED;
    case EventKind::kRankSlow:
      return v1::EVENT_KIND_RANK_SLOW;
    case EventKind::kRankNotSlow:
      return v1::EVENT_KIND_RANK_NOT_SLOW;
    case EventKind::kOrderMismatch:
      return v1::EVENT_KIND_ORDER_MISMATCH;
    case EventKind::kSaveDone:
      return v1::EVENT_KIND_SAVE_DONE;
    case EventKind::kSaveFailed:
      return v1::EVENT_KIND_SAVE_FAILED;
    case EventKind::kWorkerJoined:
      return v1::EVENT_KIND_WORKER_JOINED;
    case EventKind::kWorkerLost:
      return v1::EVENT_KIND_WORKER_LOST;
    case EventKind::kWorkerReturned:
      return v1::EVENT_KIND_WORKER_RETURNED;
  }
  return v1::EVENT_KIND_UNSPECIFIED;
}

v1::EventSeverity EncodeSeverity(EventSeverity severity) {
  switch (severity) {
    case EventSeverity::kInfo:
      return v1::EVENT_SEVERITY_INFO;
    case EventSeverity::kWarning:
      return v1::EVENT_SEVERITY_WARNING;
    case EventSeverity::kError:
      return v1::EVENT_SEVERITY_ERROR;
  }
  return v1::EVENT_SEVERITY_UNSPECIFIED;
}

v1::Event EncodeEvent(const ClusterEvent& event) {
  v1::Event encoded;
  encoded.set_number(event.number);
  encoded.set_time_unix_ms(absl::ToUnixMillis(event.time));
  encoded.set_kind(EncodeKind(event.kind));
  encoded.set_severity(EncodeSeverity(event.severity));
  encoded.set_job_id(event.job.value());
  encoded.set_generation(event.generation.value());
  encoded.set_epoch(event.epoch.value());
  encoded.set_committed_step(event.committed_step.value());
  encoded.set_rank(static_cast<int32_t>(event.rank.value()));
  encoded.set_worker_id(event.worker.value());
  encoded.set_text(event.text);
  return encoded;
}

}  // namespace

void EventsService::AddTo(CallServer* calls) {
  AddUnary(calls, "tessera.v1.Events/ListEvents", "ListEvents", CallKind::kShort, this,
           &EventsService::List);
}

absl::Status EventsService::List(ServedCall* call, const v1::ListEventsRequest& request,
                                 v1::ListEventsResponse* reply) {
  const JobId job(request.job_id());
  const Gate::Call what{call->context(), "ListEvents", job};
  ASSIGN_OR_RETURN(Gate::Caller caller, gate_->Admit(what, Right::kList));
  RETURN_IF_ERROR(CheckRange("after_number", request.after_number(), 0, INT64_MAX));
  RETURN_IF_ERROR(CheckRange("max_events", request.max_events(), 0, kMaxPageEvents));
  if (!job.value().empty()) {
    RETURN_IF_ERROR(CheckJobId(job.value()));
    // A job that is gone has events too, which the owner that it had may read.
    if (host_->GetJob(job).ok()) RETURN_IF_ERROR(gate_->Admit(what, Right::kRead).status());
  }
  const size_t max_events = request.max_events() == 0 ? kMaxPageEvents : request.max_events();
  call->MakeReplyInTurn(kMaxPageBytes, [this, reply, job, caller = std::move(caller), max_events,
                                        after_number = request.after_number()] {
    std::map<std::string, bool> may_read;  // By owner.
    const auto wanted = [&](const ClusterEvent& event) {
      if (!job.value().empty() && event.job != job) return false;
      if (event.job.value().empty()) return true;
      // Once for each owner, because ListEvents holds the host's lock meanwhile.
      const auto [may, is_new] = may_read.try_emplace(event.owner, false);
      if (is_new) {
        may->second = gate_->rules()
                          .Check(caller.identity, Right::kRead, event.job.value(), event.owner)
                          .ok();
      }
      return may->second;
    };
    const EventLog::Page page = host_->ListEvents(after_number, max_events, kMaxPageBytes, wanted);
    for (const ClusterEvent& event : page.events) *reply->add_events() = EncodeEvent(event);
    reply->set_first_number(page.first_number);
    reply->set_last_number(page.last_number);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
