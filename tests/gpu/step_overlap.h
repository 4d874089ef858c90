// How much of the executor's work is hidden behind the trainer's compute, on one GPU:
//
//   compute alone    forward and backward of all units
//   work alone       windows on all units, gradients into their slots, reductions, the vote
//   both             a step's order: each unit's reduction while the next one's backward computes
//
//   hidden share = (compute alone + work alone - both) / the shorter of the two alone
//
// 1: the shorter one took no time; 0: they took turns; below 0: they were in each other's way.
// Compute and reductions are both bound by the device's memory, of which there is no more for two
// at once: what is seen to be hidden is the executor's calls, windows and votes, and not its
// kernels' bytes. Behind compute that is bound by arithmetic these would be hidden too.
//
// Gradients have an infinity on purpose, so that every vote skips its step: an update comes when
// all is reduced and nothing computes any more, and would be in the share as work that nothing
// hides.
#ifndef TESSERA_TESTS_GPU_STEP_OVERLAP_H_
#define TESSERA_TESTS_GPU_STEP_OVERLAP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/gpu_step_bench.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

// Of an executor that is a process, and of one in the trainer: rows of the times, in microseconds
// of a step, and of the share. Rounds are interleaved.
// Errors: those of the device and of the jobs
absl::StatusOr<std::vector<BenchRow>> BenchStepOverlap(const testing_support::GpuUnderTest& gpu,
                                                       const StepBenchOptions& options);

// Of each round. Pure.
std::vector<double> HiddenShares(const std::vector<double>& compute,
                                 const std::vector<double>& work, const std::vector<double>& both);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_STEP_OVERLAP_H_
