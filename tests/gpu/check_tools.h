// NVIDIA's tools that a check uses where the machine has them.
#ifndef TESSERA_TESTS_GPU_CHECK_TOOLS_H_
#define TESSERA_TESTS_GPU_CHECK_TOOLS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {
namespace gpu_check {

inline constexpr char kSanitizer[] = "compute-sanitizer";
inline constexpr char kMpsControl[] = "nvidia-cuda-mps-control";

// The path of a program of this name, in the first of these folders that has one.
// Errors: NotFound  none has
absl::StatusOr<std::string> FindTool(const std::string& name,
                                     const std::vector<std::string>& folders);

// A daemon of MPS for the programs that this process starts while it is there, in folders of its
// own, so that it meets no other. One at a time. Thread-compatible.
class PrivateMps {
 public:
  // `tool`: the path of nvidia-cuda-mps-control. `folder` is made. What the daemon says goes to the
  // file `log`. Sets CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY.
  // Errors: DeadlineExceeded    its control socket did not come within `patience`
  //         FailedPrecondition  it ended at once
  //         Internal, ...       it cannot be started
  static absl::StatusOr<std::unique_ptr<PrivateMps>> Start(const std::string& tool,
                                                           const std::string& folder,
                                                           const std::string& log,
                                                           absl::Duration patience);
  // Tells it to quit, and kills it where it has not after a while; then the variables are gone.
  ~PrivateMps();

 private:
  PrivateMps(std::string tool, std::string log, pid_t pid)
      : tool_(std::move(tool)), log_(std::move(log)), pid_(pid) {}
  absl::Status AwaitControl(const std::string& control, absl::Duration patience);
  bool HasEnded();

  const std::string tool_, log_;
  const pid_t pid_;
  bool ended_ = false;
};

// From a signal handler: ends the daemon that runs now, if any. Async-signal-safe.
void KillPrivateMps();

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_CHECK_TOOLS_H_
