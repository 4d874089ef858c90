// What a Session is opened with, and what its operations take and give. Plain values.
#ifndef TESSERA_SESSION_OPTIONS_H_
#define TESSERA_SESSION_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "job/job_config.h"
#include "job/reshard_after_forward.h"
#include "layout/dtype.h"
#include "layout/tensor_spec.h"
#include "layout/values.h"
#include "net/transport_security.h"

namespace tessera {

class RankDevice;
struct DeviceName;

// Gives the GPU that a rank is on: MachineDevices() of in_process_executor.h.
using DeviceMaker =
    std::function<absl::StatusOr<std::unique_ptr<RankDevice>>(const DeviceName& device)>;

// Runs a rank's executor in its trainer's process: InProcessExecutor() of in_process_executor.h.
// Returns once the executor has ended and uses nothing of the rank any more; the socket's end has
// it end. Where a call of the machine's libraries never comes back, it cannot: then it calls
// `stuck`, once, and neither returns nor closes the socket until the process ends.
using ExecutorIsStuck = std::function<void(const absl::Status& why)>;
using HostExecutor = std::function<absl::Status(UniqueFd socket, const ExecutorIsStuck& stuck)>;

// SessionOptions::rank: the lowest of the worker's ranks that has no trainer, so that trainers need
// not know which ranks are on their node. Session::rank() says which one it is.
constexpr int kAnyRank = -1;

struct SessionOptions {
  std::string coordinator_address;  // "host:port"
  std::string worker_address;       // "unix:/.../worker.sock", the worker of this node.
  TlsFiles tls = {};                // For the way to the coordinator; see net/transport_security.h.
  bool insecure_connect = false;    // Permits a coordinator of another machine without TLS.
  std::string job_id;
  int rank = 0;  // Or kAnyRank.
  ModelSpec model;
  JobConfig config;
  absl::Duration attach_timeout = absl::Seconds(60);
  bool wait_if_attached = false;  // For a trainer that replaces a killed one.
  absl::Duration operation_timeout = absl::Minutes(10);  // Of each wait for other ranks.
  absl::Duration recover_timeout = absl::Minutes(2);
  // Of ranks in host memory: a use of a parameter outside its window ends the trainer, and names it.
  bool guard_windows = true;
  // For trainers that can use a GPU. Null: attaching to a rank on a GPU is refused.
  DeviceMaker make_device;
  // Runs the rank's executor in this process, on a thread of its own, for as long as the session
  // lives: see in_process_executor.h. Null: the worker runs it in a process of its own.
  // Ranks of a GPU whose driver passes no memory between processes need this: without it Open()
  // refuses them, and if the executor ends by an error, the session ends too, with
  // FailedPrecondition.
  HostExecutor host_executor;
};

// What `tessera run` says in the environment of the trainers that it starts: the rank's place in the
// job, the addresses and, over several nodes, the way to the coordinator. The successor of a killed
// trainer waits until its rank is free. The model, the rest of the config and the timeouts are not
// set.
// Reads TESSERA_COORDINATOR, TESSERA_WORKER, TESSERA_JOB ("train" without it), RANK, WORLD_SIZE and
// TESSERA_TLS_CERT, TESSERA_TLS_KEY, TESSERA_TLS_CA or TESSERA_INSECURE_CONNECT; any thread, while
// none sets the environment.
// Errors: FailedPrecondition  one that is needed is not set, named; InvalidArgument  RANK or
// WORLD_SIZE is not a number
absl::StatusOr<SessionOptions> OptionsFromLauncher();

// The same on all ranks but for `weight`.
struct StepOptions {
  double learning_rate_scale = 1.0;  // Multiplies each param group's learning rate.
  // This step's numbers, one for each of config.groups; empty: the job's.
  std::vector<HyperParameters> groups;
  // The gradient is the mean over the ranks, divided by this (the loss's scale, for instance).
  double gradient_divisor = 1.0;
  // On all ranks or on none: the gradient is the sum over the ranks divided by the sum of their
  // weights (each rank's number of tokens, for instance; it may be 0), and by gradient_divisor.
  std::optional<double> weight;
  // NaN or Inf in a gradient is not an error: the step is skipped, on all ranks.
  bool skip_non_finite = false;
};

struct StepResult {
  int64_t step = 0;          // The last one that was taken.
  double gradient_norm = 0;  // Global, after all divisions, before clipping.
  bool skipped = false;      // Nothing was changed, the gradients are dropped.
};

enum class Precision {
  kCompute,  // The unit's compute dtype.
  kFull,     // As the shards are, fp32 or fp64; costs a copy of the unit, once a step.
};

// --- CommHook ---
//
// What a user does to a unit's gradient on its way: before it travels, and after it was reduced.
//
//   AddGradient ... ──► before ──► compress ──► mean over the ranks ──► after ──► vote, step
//                       the rank's own, whole   (in full)               the rank's shard
//
// Both are called by the trainer's thread, with what they need to remember in their captures. The
// reduction itself stays the executors'. An error ends the step on every rank, as any error of the
// step's code does. Ranks whose gradients travel in different dtypes are told so; what `before` and
// `after` do, nobody compares.
// Source: register_comm_hook and the compression hooks of torch/distributed.

struct CommHook {
  // What the gradient travels in, whatever the unit's reduce dtype is: bf16, fp16 or, for the full
  // dtype, fp32.
  std::optional<DType> compress;
  // The unit's gradient of this rank with all that was accumulated, laid out as its flat parameter,
  // once for each reduction. Elements outside parameters, and of parameters without a gradient, are
  // 0 and become 0 again.
  std::function<absl::Status(int unit, Values gradient)> before;
  // This rank's shard of the mean, with all that was reduced since the last step, once in a step.
  // Not of a gradient that the user set as a whole (Session::WriteGradients).
  std::function<absl::Status(int unit, Values shard)> after;

  bool empty() const { return !compress.has_value() && !before && !after; }
};

inline CommHook Fp16Compression() { return {DType::kFp16, nullptr, nullptr}; }
inline CommHook Bf16Compression() { return {DType::kBf16, nullptr, nullptr}; }

}  // namespace tessera

#endif  // TESSERA_SESSION_OPTIONS_H_
