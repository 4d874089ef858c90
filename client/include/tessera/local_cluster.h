// A coordinator and one worker, or several that stand for nodes, in this process, for tests and
// small programs: no daemon to deploy.
//
//   auto cluster = LocalCluster::Start({.num_devices = 4});
//   options.coordinator_address = cluster->coordinator_address(); ...
//
// Executors are threads of this process unless a binary is named. Trainers may be threads of this
// process or other processes of the same user. Start and Stop from one thread.
#ifndef TESSERA_LOCAL_CLUSTER_H_
#define TESSERA_LOCAL_CLUSTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

class DeviceMemory;
struct ExecutorMachine;

class LocalCluster {
 public:
  struct Options {
    int num_devices = 1;  // Of each worker.
    // "local", or "local0", "local1", ...: their ranks share no memory, and reach each other over
    // the loopback interface.
    int num_workers = 1;
    std::string journal_path;     // Empty: the coordinator's state is in memory.
    std::string executor_binary;  // Empty: threads.
    std::vector<std::string> executor_flags;
    // For tests of Tessera itself: the GPU of all ranks, and what executors find on the machine.
    // Null: ranks are in host memory.
    std::shared_ptr<DeviceMemory> device_memory;
    std::shared_ptr<ExecutorMachine> machine;
    int num_workers_without_gpu = 0;  // The last ones; their ranks are in host memory.
  };
  // Returns once all workers are registered. Errors: ResourceExhausted  no port, socket or memory;
  // NotFound  no such executor binary; DeadlineExceeded  a worker does not reach the coordinator
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const Options& options);

  virtual ~LocalCluster() = default;  // Stops; removes its folder.
  virtual std::string coordinator_address() const = 0;
  // Requires 0 <= worker < num_workers.
  virtual std::string worker_address(int worker = 0) const = 0;
  virtual void KillExecutorForTest(const std::string& job_id, int rank) = 0;
};

}  // namespace tessera

#endif  // TESSERA_LOCAL_CLUSTER_H_
