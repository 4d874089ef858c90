// How long a step of a job with one rank on a GPU takes, against the same work without a job.
//
//   round 1   plain steps │ steps, executor a process │ steps, executor in the trainer
//   round 2   plain steps │ ...
//
// A step of each computes the same, to the bit, on bf16 parameters of equal units: per unit some
// passes of a kernel over its parameters in forward, twice as many in backward, and a gradient in
// bf16; then AdamW on fp32, published as bf16. Plain work is enqueued on one stream and waited for
// once. What a job adds are windows, copies of gradients into its slots, their reduction with norm
// and finite check, the vote and the commit.
//
// Parameters of all ways are compared in the end: a way that computed anything else is an error.
#ifndef TESSERA_TESTS_GPU_GPU_STEP_BENCH_H_
#define TESSERA_TESTS_GPU_GPU_STEP_BENCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

struct StepBenchOptions {
  int rounds = 9;
  int warm_up_rounds = 2;  // Before them, and not counted; the first records the job's order.
  int steps_per_round = 4;
  int num_units = 24;
  int64_t unit_numel = int64_t{16} << 20;
  // Over a unit's parameters. As long as a language model computes on 8192 tokens of each
  // parameter: 2 * 8192 operations at 790 TFLOP/s take as long as 15 passes over 6 bytes at 4.3
  // TB/s.
  int forward_passes = 15;
};

// Rows in microseconds, and how fast each way is by that of the plain steps in the same round.
// Errors: those of the device and of the jobs
absl::StatusOr<std::vector<BenchRow>> BenchSteps(const testing_support::GpuUnderTest& gpu,
                                                 const StepBenchOptions& options);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_GPU_STEP_BENCH_H_
