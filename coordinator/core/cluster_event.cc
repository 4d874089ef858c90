#include "coordinator/core/cluster_event.h"

namespace tessera::coordinator {

absl::string_view Name(EventKind kind) {
  switch (kind) {
    case EventKind::kJobCreated:
      return "job_created";
    case EventKind::kJobState:
      return "job_state";
    case EventKind::kJobDeleted:
      return "job_deleted";
    case EventKind::kRankMissing:
      return "rank_missing";
    case EventKind::kRankArrived:
      return "rank_arrived";
    case EventKind::kRankSlow:
      return "rank_slow";
    case EventKind::kRankNotSlow:
      return "rank_not_slow";
    case EventKind::kOrderMismatch:
      return "order_mismatch";
    case EventKind::kSaveDone:
      return "save_done";
    case EventKind::kSaveFailed:
      return "save_failed";
    case EventKind::kWorkerJoined:
      return "worker_joined";
    case EventKind::kWorkerLost:
      return "worker_lost";
    case EventKind::kWorkerReturned:
      return "worker_returned";
  }
  return "unknown";
}

absl::string_view Name(EpochCause cause) {
  switch (cause) {
    case EpochCause::kPlaced:
      return "placed";
    case EpochCause::kHandOver:
      return "hand_over";
    case EpochCause::kRankFailure:
      return "rank_failure";
    case EpochCause::kNotPrepared:
      return "not_prepared";
    case EpochCause::kOrderMismatch:
      return "order_mismatch";
    case EpochCause::kMissingRank:
      return "missing_rank";
    case EpochCause::kWorkerLost:
      return "worker_lost";
  }
  return "unknown";
}

EventSeverity SeverityOf(EventKind kind) {
  switch (kind) {
    case EventKind::kOrderMismatch:
    case EventKind::kSaveFailed:
    case EventKind::kWorkerLost:
      return EventSeverity::kError;
    case EventKind::kRankMissing:
    case EventKind::kRankSlow:
      return EventSeverity::kWarning;
    default:
      return EventSeverity::kInfo;
  }
}

bool IsFailure(EpochCause cause) {
  return cause != EpochCause::kPlaced && cause != EpochCause::kHandOver;
}

}  // namespace tessera::coordinator
