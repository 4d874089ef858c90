// How long it takes from a trainer's reduction to its executor's launch of the kernel: through the
// ring of shared memory, whether the executor is a process or in the trainer's.
//
//   trainer    Reduce(u): now ──► ring ─┐
//   executor                            └──► takes it ──► launches the kernel: now
//
// Both read the machine's one steady clock; the executor writes its reading to a file that both
// have mapped. What the trainer's GPU had to do is done before, so nobody waits for a device.
#ifndef TESSERA_TESTS_GPU_LAUNCH_LATENCY_H_
#define TESSERA_TESTS_GPU_LAUNCH_LATENCY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

struct LatencyOptions {
  int steps = 400;          // One reduction each.
  int warm_up_steps = 50;   // Before them, and not counted.
  int64_t numel = 1 << 16;  // What is reduced.
  // Of executors that are processes: a program that calls RunLatencyExecutor first.
  std::string program;
};

// A row for each kind of executor, in microseconds.
// Errors: those of the device and of the jobs
absl::StatusOr<std::vector<BenchRow>> BenchLaunchLatency(const testing_support::GpuUnderTest& gpu,
                                                         const LatencyOptions& options);

// PROGRAM --as-executor FILE [...] is an executor, as tessera-executor, on a device of `make`, that
// writes to FILE when it launched a reduction. What main returns; nothing where it is not so
// called.
std::optional<int> RunLatencyExecutor(int argc, char** argv, const MakeRankDevice& make);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_LAUNCH_LATENCY_H_
