// Whether gathering parameters of ranks that share a GPU disturbs compute on it: a product of
// matrices by itself, during windows on large units, and during copies of as many bytes.
//
//   round 1   GEMM alone │ GEMM, and windows one after the other │ GEMM, and copies one after ...
//   round 2   ...
//
// Two ranks of one worker have their executors in this process, so that kernels of a gather, if
// there were any, would be seen by a counter of this process.
#ifndef TESSERA_TESTS_GPU_OVERLAP_BENCH_H_
#define TESSERA_TESTS_GPU_OVERLAP_BENCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/machine_libraries.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

struct OverlapOptions {
  int rounds = 9;
  int warm_up_rounds = 2;
  int gemms = 10;  // A sample.
  int num_units = 2;
  int64_t unit_bytes = int64_t{64} << 20;  // In bf16; and of a copy.
  int counted_windows = 20;                // On each unit.
};

// Rows of the three, in microseconds, with how fast each is by the first, and how many kernels
// windows launch: absent where `counter` is NotFound, with its message.
// Errors: those of the device and of the jobs
absl::StatusOr<std::vector<BenchRow>> BenchOverlap(const testing_support::GpuUnderTest& gpu,
                                                   Gemm* gemm,
                                                   const absl::StatusOr<KernelCounter*>& counter,
                                                   const OverlapOptions& options);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_OVERLAP_BENCH_H_
