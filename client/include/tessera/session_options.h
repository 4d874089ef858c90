// What a Session is opened with, and what its operations take and give. Plain values.
#ifndef TESSERA_SESSION_OPTIONS_H_
#define TESSERA_SESSION_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/job_config.h"
#include "layout/tensor_spec.h"
#include "net/transport_security.h"
#include "tessera/host_executor_function.h"

namespace tessera {

class RankDevice;
struct DeviceName;

struct SessionOptions {
  std::string coordinator_address;  // "host:port"
  std::string worker_address;       // "unix:/.../worker.sock", the worker of this node.
  TlsFiles tls = {};                // For the way to the coordinator; see net/transport_security.h.
  bool insecure_connect = false;    // Permits a coordinator of another machine without TLS.
  std::string job_id;
  int rank = 0;
  ModelSpec model;
  JobConfig config;
  absl::Duration attach_timeout = absl::Seconds(60);
  bool wait_if_attached = false;  // For a trainer that replaces a killed one.
  absl::Duration operation_timeout = absl::Minutes(10);  // Of each wait for other ranks.
  absl::Duration recover_timeout = absl::Minutes(2);
  bool guard_windows = true;  // See window_guard.h; of ranks in host memory.
  // Gives the GPU that the rank is on, for trainers that can use one: see
  // worker/executor/machine_devices.h. Null: attaching to a rank on a GPU is refused.
  std::function<absl::StatusOr<std::unique_ptr<RankDevice>>(const DeviceName& device)> make_device;
  // Runs the rank's executor in this process, on a thread of its own, for as long as the session
  // lives: see client/executor/host_executor.h. Null: the worker runs it in a process of its own.
  // Ranks of a GPU whose driver passes no memory between processes need this: without it Open()
  // refuses them, and if the executor ends by an error, the session ends too, with
  // FailedPrecondition.
  HostExecutor host_executor;
};

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

}  // namespace tessera

#endif  // TESSERA_SESSION_OPTIONS_H_
