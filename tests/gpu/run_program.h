// Runs one program of a check, with a deadline.
#ifndef TESSERA_TESTS_GPU_RUN_PROGRAM_H_
#define TESSERA_TESTS_GPU_RUN_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {
namespace gpu_check {

struct ProgramEnd {
  bool killed = false;  // At the deadline.
  int exit_status = 0;  // Where it ended by itself; 128 + the number of the signal that ended it.
  double seconds = 0;
  std::string output;  // Standard output and error.
};

// Runs `arguments`, the first of which is the program's path, until it ends or `deadline` has
// passed; then it is killed, and every process that it started and that stayed in its group. What
// it writes is appended to the file `log`, too. No other child of this process is waited for.
// Errors: NotFound   no such program
//         Internal, ResourceExhausted  no process, or the log cannot be written or read
absl::StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& arguments,
                                      absl::Duration deadline, const std::string& log);

// From a signal handler: kills the group that runs now, if any. Async-signal-safe.
void KillRunningProgram();

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_RUN_PROGRAM_H_
