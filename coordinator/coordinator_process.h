// Runs the real tessera-coordinator binary for tests that kill it. Thread-compatible.
#ifndef TESSERA_COORDINATOR_COORDINATOR_PROCESS_H_
#define TESSERA_COORDINATOR_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera::coordinator {

class CoordinatorProcess {
 public:
  // Starts it on any port of 127.0.0.1 and waits until it listens. `flags` are added to the default
  // flags or replace them. `folder` must exist; the port file and the log are written there.
  //
  // Errors: FailedPrecondition  it ended; the message is what it wrote to stderr
  //         DeadlineExceeded    it does not listen after 20 s
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(
      const std::string& folder, const std::vector<std::string>& flags);
  ~CoordinatorProcess();  // Kills it.

  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  std::string address() const;
  void Signal(int signal);
  // Waits until it ends. Returns its exit code, or minus the signal that ended it. After 20 s it
  // kills the process and returns kDidNotEnd.
  static constexpr int kDidNotEnd = 1000;
  int Wait();

 private:
  explicit CoordinatorProcess(pid_t pid);
  absl::Status AwaitPort(const std::string& folder, int directory_watch);

  pid_t pid_ = -1;  // -1: has been waited for.
  UniqueFd pid_fd_;
  int port_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_COORDINATOR_PROCESS_H_
