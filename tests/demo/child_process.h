// A child process of a test or demo: its output read by line, killed with its parent.
// Thread-compatible. The destructor kills and reaps.
#ifndef TESSERA_TESTS_DEMO_CHILD_PROCESS_H_
#define TESSERA_TESTS_DEMO_CHILD_PROCESS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace tessera::demo {

class ChildProcess {
 public:
  // Standard error goes to `log_path` (appended).
  // Errors: NotFound  no such binary.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& args,
                                                             const std::string& log_path);
  ~ChildProcess();

  int pid() const { return pid_; }
  int output_fd() const { return output_.get(); }
  // Reads what is there now; returns whole lines. Sets at_end() when the output was closed.
  std::vector<std::string> ReadLines();
  bool at_end() const { return at_end_; }
  void Kill(int signal);
  // Waits for its end: the exit status, or 128 + signal.
  int Wait();
  bool running();  // Not yet ended.

 private:
  ChildProcess(int pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}

  const int pid_;
  UniqueFd output_;
  std::string partial_;
  bool at_end_ = false;
  std::optional<int> status_;
};

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_CHILD_PROCESS_H_
