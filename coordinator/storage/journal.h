// Where the coordinator's durable facts are stored: a map of keys to opaque bytes, changed in
// atomic batches.
//
//   Append({put a=1, put b=2}) ; Append({delete a, put b=3})      ReadAll() == {b=3}
//
// Only the latest value of a key is kept, so there is nothing to compact. Not thread-safe: one
// caller at a time.
#ifndef TESSERA_COORDINATOR_STORAGE_JOURNAL_H_
#define TESSERA_COORDINATOR_STORAGE_JOURNAL_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::coordinator {

struct JournalChange {
  enum class Kind { kPut, kDelete, kDeletePrefix };
  Kind kind = Kind::kPut;
  std::string key;    // kDeletePrefix: what the keys to delete begin with; not empty.
  std::string value;  // kPut only.
};

struct JournalRow {
  std::string key;
  std::string value;

  friend bool operator==(const JournalRow& a, const JournalRow& b) {
    return a.key == b.key && a.value == b.value;
  }
};

// What an acknowledged batch survives.
enum class Durability {
  kPowerLoss,     // A power failure; and so does every earlier batch.
  kProcessDeath,  // The death of this process.
};

class Journal {
 public:
  virtual ~Journal() = default;

  // Applies the changes in order. After an error nothing of the batch is visible.
  // Errors: ResourceExhausted  no room for it
  //         Unavailable        the storage failed; trying again may help
  //         DataLoss           the storage is damaged
  virtual absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) = 0;

  // All rows in key order.
  // Errors: DataLoss     a damaged row (names its key)
  //         Unavailable  the storage cannot be read
  virtual absl::StatusOr<std::vector<JournalRow>> ReadAll() = 0;

  // The number of kPowerLoss batches that it has. Never decreases.
  virtual int64_t num_changes() const = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_JOURNAL_H_
