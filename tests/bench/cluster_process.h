// A coordinator, a worker and its executors for benchmarks, in processes of their own.
//
// They are started by fork, so make one before this process has threads. All of them are gone when
// this is destroyed.
#ifndef TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_
#define TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {
namespace bench {

class ClusterProcess {
 public:
  // `executor_binary` empty: executors are threads of the cluster's process.
  // Errors: ResourceExhausted  no process or pipe
  //         Internal           the cluster did not start; its log says why
  static absl::StatusOr<std::unique_ptr<ClusterProcess>> Start(int num_devices,
                                                               const std::string& executor_binary);
  ~ClusterProcess();

  const std::string& coordinator_address() const { return coordinator_address_; }
  const std::string& worker_address() const { return worker_address_; }
  // Processor time that its processes have taken up to now, in nanoseconds.
  int64_t CpuNs() const;

 private:
  ClusterProcess() = default;

  pid_t pid_ = -1;     // Leads the process group of the cluster.
  UniqueFd lifeline_;  // The cluster ends when this closes.
  std::string coordinator_address_;
  std::string worker_address_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_
