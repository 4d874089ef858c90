// The program saver_main.cc, as a test uses it. What it does to files can be watched, interrupted
// and made to fail (disk_log/disk_log.h) if the log was started before it. Thread-compatible.
#ifndef TESSERA_TESTS_FAULT_SAVE_STEPS_SAVER_H_
#define TESSERA_TESTS_FAULT_SAVE_STEPS_SAVER_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "tests/fault/save_steps/save_kinds.h"

namespace tessera {

class Saver {
 public:
  // Its rank in the log is 0, of both ranks that save. Errors: the system's.
  static absl::StatusOr<std::unique_ptr<Saver>> Start();
  ~Saver();

  // As those of saved_version.h. Errors: also Internal  a signal ended the process that did it, or
  // Unavailable  the program has ended.
  absl::Status Prepare(SaveKind kind, const std::string& root, int version);
  absl::Status Save(SaveKind kind, const std::string& root, int version);

 private:
  Saver() = default;
  absl::Status Call(const std::string& verb, SaveKind kind, const std::string& root, int version);

  pid_t pid_ = -1;
  UniqueFd to_, from_;
};

// Whether that is what Save says of a process that was killed.
bool WasKilled(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_SAVE_STEPS_SAVER_H_
