// What happened in the cluster, for people: the core says it in Effects, the host keeps it in an
// EventLog (event_log.h), and clients read it (proto/events.proto). Plain values.
#ifndef TESSERA_COORDINATOR_CORE_CLUSTER_EVENT_H_
#define TESSERA_COORDINATOR_CORE_CLUSTER_EVENT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace tessera::coordinator {

// As in proto/events.proto.
enum class EventKind {
  kJobCreated,
  kJobState,
  kJobDeleted,
  kRankMissing,
  kRankArrived,
  kRankSlow,
  kRankNotSlow,
  kOrderMismatch,
  kSaveDone,
  kSaveFailed,
  kWorkerJoined,
  kWorkerLost,
  kWorkerReturned,
};
enum class EventSeverity { kInfo, kWarning, kError };

// Why an epoch of a job was opened.
enum class EpochCause {
  kPlaced,         // There was no epoch: there are devices, or its workers are back.
  kHandOver,       // It is handed over, or goes on after that was cancelled.
  kRankFailure,    // A rank or worker reported that it failed.
  kNotPrepared,    // A worker did not prepare the epoch in time.
  kOrderMismatch,  // Ranks issued different operations.
  kMissingRank,    // A rank was missing at an operation for too long (--end-hung-epochs).
  kWorkerLost,     // A worker is silent, or has lost its memory.
};

// "rank_missing", "worker_lost": fit for the label of a metric.
absl::string_view Name(EventKind kind);
absl::string_view Name(EpochCause cause);

// Of all events of the kind but kJobState, whose severity depends on the state.
EventSeverity SeverityOf(EventKind kind);
// Whether an epoch of this cause follows something that failed.
bool IsFailure(EpochCause cause);

struct ClusterEvent {
  EventKind kind = EventKind::kJobState;
  EventSeverity severity = EventSeverity::kInfo;
  JobId job = JobId();  // Empty: of no job.
  Generation generation = Generation();
  Epoch epoch = Epoch();
  Step committed_step = Step();
  Rank rank = Rank(-1);  // -1: of none in particular.
  WorkerId worker = WorkerId();
  std::string text = "";
  std::string owner = "";  // Of the job, for who may read this; not sent.
  // Set by EventLog::Add.
  int64_t number = 0;
  absl::Time time = absl::UnixEpoch();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_CLUSTER_EVENT_H_
