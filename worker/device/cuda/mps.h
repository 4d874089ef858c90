// Whether CUDA programs of this machine go by NVIDIA's multi-process service (MPS), as far as its
// traces tell. By MPS kernels of several processes run side by side on a GPU, where else they take
// turns; and a kernel's fault in one of them ends the others too.
//
//   control socket   its daemon's process   verdict
//   there            there                  kRunning     programs that use this folder go by MPS
//   there            not to be seen         kUnclear     stale, or its daemon is in another
//                                                        container
//   not there        there                  kElsewhere   the daemon's folder is another one, or
//                                                        this user may not look into it
//   not there        not to be seen         kNotRunning
//
// Nothing here connects to the daemon or reads the environment: the folder is an argument, and
// a caller that starts programs with CUDA_MPS_PIPE_DIRECTORY passes that. So it cannot know
// - whether the daemon takes this user and serves this device, or its server can start;
// - whether one program or another has a different folder in its environment;
// - whether a process that calls itself so is the daemon, or one has ended since.
// The driver alone decides, in each process, when that creates its first context.
#ifndef TESSERA_WORKER_DEVICE_CUDA_MPS_H_
#define TESSERA_WORKER_DEVICE_CUDA_MPS_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

// The driver's, where the environment says nothing.
inline constexpr char kDefaultMpsFolder[] = "/tmp/nvidia-mps";

enum class Mps { kNotRunning, kRunning, kUnclear, kElsewhere };

struct MpsFacts {
  absl::Status control;  // Of looking for the control socket; OK: it is there.
  int processes = 0;     // Of that name: the daemon, and a server for each user.
};

struct MpsFinding {
  Mps verdict = Mps::kNotRunning;
  std::string reason;  // For the log.
};

// Pure.
MpsFinding JudgeMps(const MpsFacts& facts);

// `proc_folder` is the system's /proc. Thread-safe.
MpsFacts ProbeMps(const std::string& pipe_folder, const std::string& proc_folder = "/proc");

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_MPS_H_
