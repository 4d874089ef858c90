// A coordinator, a worker and its executors for benchmarks, in processes of their own.
//
// They are started by fork, so make one before this process has threads. All of them are gone when
// this is destroyed.
#ifndef TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_
#define TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {
namespace bench {

// Bytes of memfd mappings of a process, each page divided by the processes that map it.
int64_t SharedBytesOf(pid_t pid);

class ClusterProcess {
 public:
  // `num_devices`: of each worker. `executor_binary` empty: executors are threads of the cluster's
  // process.
  // Errors: ResourceExhausted  no process or pipe
  //         Internal           the cluster did not start; its log says why
  static absl::StatusOr<std::unique_ptr<ClusterProcess>> Start(int num_devices,
                                                               const std::string& executor_binary,
                                                               int num_workers = 1);
  ~ClusterProcess();

  const std::string& coordinator_address() const { return coordinator_address_; }
  const std::string& worker_address(int worker = 0) const { return worker_addresses_[worker]; }
  // Processor time that its processes have taken up to now, in nanoseconds.
  int64_t CpuNs() const { return Use().cpu_ns; }
  // Pages that they have faulted in up to now: executors that are processes of their own, and
  // coordinator and workers.
  int64_t ExecutorPageFaults() const { return Use().executor_page_faults; }
  int64_t ControlPageFaults() const { return Use().control_page_faults; }
  // Resident bytes of each of its processes; from now on their peaks count from here.
  std::map<pid_t, int64_t> MarkMemory() const;
  // By how much they have grown since at the most, each for itself, summed.
  int64_t PeakGrowthBytes(const std::map<pid_t, int64_t>& mark) const;
  // Shared memory of jobs that they have mapped, each page divided by the processes that map it.
  int64_t SharedBytes() const;

 private:
  struct Used {
    int64_t cpu_ns = 0;
    int64_t executor_page_faults = 0;
    int64_t control_page_faults = 0;
  };
  ClusterProcess() = default;
  Used Use() const;

  pid_t pid_ = -1;     // Leads the process group of the cluster.
  UniqueFd lifeline_;  // The cluster ends when this closes.
  std::string coordinator_address_;
  std::vector<std::string> worker_addresses_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_CLUSTER_PROCESS_H_
