// How much of the executor's work is hidden behind the trainer's compute, on one GPU:
//
//   compute alone    forward and backward of all units
//   work alone       windows on all units, gradients into their slots, reductions, the vote
//   both             a step's order: each unit's reduction while the next one's backward computes
//
//   hidden share = (compute alone + work alone - both) / the shorter of the two alone
//
// 1: the shorter one took no time; 0: they took turns; below 0: they were in each other's way. Of
// two kinds of compute, each beside an executor that is a process and beside one in the trainer:
//
//   passes over memory    bound by the device's memory, as reductions are, of which there is no
//                         more for two at once: what is seen to be hidden is the executor's calls,
//                         windows and votes, and not its kernels' bytes. So it does not tell
//                         whether kernels ran side by side.
//   products of matrices  bound by arithmetic, with the device's memory all but idle: what of
//                         reductions runs beside them is hidden too, kernels and all.
//
// Kernels of two processes take turns on a GPU unless both are clients of MPS, which is when a
// share beside products says something of an executor that is a process; streams of one process
// need none.
//
// Products are cuBLAS's, as those of a model are, with the room that these leave on a GPU for other
// kernels; a kernel of ours that only computes would leave another. So where a machine has no
// cuBLAS they are absent. There are as many as take about as long as the executors' work alone, in
// the mean of both, and that number is a row. They leave the gradients that passes made.
//
// What no share here tells:
//   - that of a model, whose compute is between these two, and whose kernels leave other room
//   - why kernels did not run side by side. All streams here have the least priority, as a
//     trainer's have that says nothing, and none is the default stream; but streams may share a
//     queue of the driver's, which CUDA_DEVICE_MAX_CONNECTIONS bounds, and wait for each other
//     there, and clocks may fall where both are busy
//   - that something was left that could be hidden: the last unit's reduction and the vote have no
//     compute beside them, so 1 is out of reach by about a unit's part
//
// Gradients have an infinity on purpose, so that every vote skips its step: an update comes when
// all is reduced and nothing computes any more, and would be in the share as work that nothing
// hides.
#ifndef TESSERA_TESTS_GPU_STEP_OVERLAP_H_
#define TESSERA_TESTS_GPU_STEP_OVERLAP_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/gpu_step_bench.h"
#include "tests/gpu/machine_libraries.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

struct StepOverlapOptions {
  StepBenchOptions steps;
  // Of the matrices' rows and columns: so many that a product has hundreds of operations for each
  // byte that it must move, and meant to be so few that a unit has several in the time of its work.
  int product_size = 2048;
  std::function<double()> host_seconds = {};  // A clock of the host; empty: the steady one.
};

// For each kind of compute rows of the times, in microseconds of a step, and of the shares. Rounds
// are interleaved. `gemm` is of matrices of that size, on the GPU; where it is NotFound the
// products are a row that is absent, with its message, and where anything else is wrong with them a
// row with the error, beside the rows of the passes. Errors: those of the device and of the jobs
absl::StatusOr<std::vector<BenchRow>> BenchStepOverlap(const testing_support::GpuUnderTest& gpu,
                                                       StepOverlapOptions options,
                                                       const absl::StatusOr<Gemm*>& gemm);

// Of each round. Pure.
std::vector<double> HiddenShares(const std::vector<double>& compute,
                                 const std::vector<double>& work, const std::vector<double>& both);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_STEP_OVERLAP_H_
