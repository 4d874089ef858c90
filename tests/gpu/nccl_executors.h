// Executors that reach each other by NCCL although their ranks share one GPU: a way to test, and
// none to run. Processes where the machine's NCCL is to be had, else threads over a fake of it.
#ifndef TESSERA_TESTS_GPU_NCCL_EXECUTORS_H_
#define TESSERA_TESTS_GPU_NCCL_EXECUTORS_H_

#include <string>

#include "absl/status/status.h"
#include "tessera/local_cluster.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

class NcclExecutors {
 public:
  // Writes what it needs into the folder of the test. `gpu` outlives this.
  // Errors: Unimplemented  there is neither; Unavailable  the folder takes no files
  absl::Status SetUp(const testing_support::GpuUnderTest* gpu);
  // Of processes: the program that is one. Empty: they are threads.
  const std::string& program() const { return program_; }
  // So that a cluster's executors are such.
  void ChooseFor(LocalCluster::Options* options) const;
  // What they said up to now, once their cluster is gone. Of threads with what else this process
  // wrote to its output since SetUp. Once.
  std::string TakeLog();

 private:
  const testing_support::GpuUnderTest* gpu_ = nullptr;
  std::string program_, log_;
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_NCCL_EXECUTORS_H_
