// The core's durable facts as journal rows and back; docs/formats/journal.md has the table.
// Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_RECORD_CODEC_H_
#define TESSERA_COORDINATOR_SERVICE_RECORD_CODEC_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/records.h"
#include "coordinator/service/journal_clock.h"
#include "coordinator/storage/journal.h"

namespace tessera::coordinator {

// The changes that make `record` durable, appended to `batch`.
void EncodeRecord(const StateRecord& record, std::vector<JournalChange>* batch,
                  const JournalClock& clock = JournalClock::OfThisProcess());

// Errors: DataLoss  a key or value that cannot be read; names the key
absl::StatusOr<StateRecord> DecodeRecord(const JournalRow& row,
                                         const JournalClock& clock = JournalClock::OfThisProcess());

// The job that a row belongs to; none: it is of none, or its key cannot be read.
std::optional<JobId> JobOfRow(const JournalRow& row);
// Whether the coordinator can go on without a row that cannot be read and is of no job.
bool CanDoWithout(const JournalRow& row);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_RECORD_CODEC_H_
