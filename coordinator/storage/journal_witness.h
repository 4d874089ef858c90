// A file beside the journal that says how many changes were acknowledged, so that a journal which
// has lost its last ones is noticed: SQLite takes a damaged or shortened write-ahead log for its
// end.
//
// Written after each change without a sync: it survives the death of the process, and after that of
// the machine it may lag behind, never run ahead. Not thread-safe.
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

  // Makes the file where there is none: it has seen nothing then.
  // Errors: DataLoss          the file is of no known form
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
