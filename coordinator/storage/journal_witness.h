// A file next to the journal that records how many changes were acknowledged. It detects a journal
// that has lost its last changes: SQLite takes a damaged or shortened write-ahead log for the end
// of the log.
//
// Written after each change without a sync. It survives the death of the process. After a power
// failure it may lag behind the journal, but it never runs ahead. Not thread-safe.
#ifndef TESSERA_COORDINATOR_STORAGE_JOURNAL_WITNESS_H_
#define TESSERA_COORDINATOR_STORAGE_JOURNAL_WITNESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera::coordinator {

class JournalWitness {
 public:
  JournalWitness() = default;

  // Creates the file if it is missing. A new file has seen no change.
  // Errors: DataLoss          the format of the file is not known
  //         PermissionDenied  and others of open(2) and read(2)
  static absl::StatusOr<JournalWitness> Open(const std::string& path);

  // How many changes it has seen.
  int64_t number() const { return number_; }
  // Errors: those of write(2); the number stays as it was.
  absl::Status Write(int64_t number);

 private:
  UniqueFd file_;
  std::string path_;
  int64_t number_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_JOURNAL_WITNESS_H_
