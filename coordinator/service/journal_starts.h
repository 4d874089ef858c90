// Which starts of coordinators wrote to this journal, and whether it has what a worker has heard
// from it: a copy of the journal that is older, or that another coordinator runs on, does not.
//
//   Read        the earlier starts; this one has a number of its own
//   Note        adds this start, once: before the first worker hears of it, so that starts which
//   end
//               before they serve leave nothing
//   CheckHeard  each time a worker registers
//
// A plain value; thread-compatible.
#ifndef TESSERA_COORDINATOR_SERVICE_JOURNAL_STARTS_H_
#define TESSERA_COORDINATOR_SERVICE_JOURNAL_STARTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/storage/journal.h"

namespace tessera::coordinator {

// What a worker has heard last. Start 0: nothing.
struct HeardJournal {
  uint64_t start = 0;
  int64_t changes = 0;
};

class JournalStarts {
 public:
  static constexpr size_t kMaxStarts = 1024;  // Of older ones nothing is kept.

  static bool IsRowOf(const JournalRow& row);

  // `rows`: all of the journal's. Errors: DataLoss  a row that says nothing
  static absl::StatusOr<JournalStarts> Read(const std::vector<JournalRow>& rows);
  // Errors: as Journal::Append
  absl::Status Note(Journal* journal);

  uint64_t own() const { return own_; }  // This start.
  // Whether the journal, which has this many changes, has what the worker has heard.
  // Errors: FailedPrecondition  it has not: names the worker and what is missing
  absl::Status CheckHeard(const std::string& worker, const HeardJournal& heard,
                          int64_t num_changes) const;

 private:
  uint64_t own_ = 0;
  bool is_noted_ = false;
  std::map<int64_t, uint64_t> starts_;  // By number.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_JOURNAL_STARTS_H_
