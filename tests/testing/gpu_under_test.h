// The GPU that a test of jobs is about: a fake one, or that of the machine. A test links the one or
// the other implementation, and is the same for both.
#ifndef TESSERA_TESTS_TESTING_GPU_UNDER_TEST_H_
#define TESSERA_TESTS_TESTING_GPU_UNDER_TEST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/comm/direct_communicators.h"
#include "worker/device/device_memory.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

struct GpuUnderTest {
  MakeRankDevice make_device;  // The host too.
  std::shared_ptr<DeviceMemory> memory;
  std::string executor_binary;  // Of executors that are processes.
  absl::Status nccl;            // Why these cannot use NCCL; OK: they can.
  int nccl_version = 0;         // As NCCL numbers them.
  // Where these cannot: NCCL of executors that are threads. Null: there is none either. Outlives
  // the executors.
  MakeDirectCommunicators nccl_of_threads = nullptr;

  // Processes share nothing of the GPU: trainers have their executors in their processes, and each
  // rank of a job has a worker of its own. See DeviceMemory.
  bool in_process() const { return !memory->why_not_shared().empty(); }
};

// Errors: NotFound, Unimplemented  the machine has none: the test is skipped
//         FailedPrecondition       no rank could use it
absl::StatusOr<GpuUnderTest> FindGpuUnderTest();

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_GPU_UNDER_TEST_H_
