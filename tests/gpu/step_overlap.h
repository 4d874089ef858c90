// How much of the executor's work is hidden by the trainer's compute, on one GPU:
//
//   compute alone    forward and backward of all units
//   work alone       windows on all units, gradients into their slots, reductions, the vote
//   both             a step's order: each unit's reduction while the next one's backward computes
//
//   hidden share = (compute alone + work alone - both) / the shorter of the two alone
//
// 1: the shorter one took no time; 0: they took turns; below 0: they were in each other's way. Of
// two kinds of compute, each with an executor that is a process and with one in the trainer:
//
//   passes over memory    bound by the device's memory, as reductions are, of which there is no
//                         more for two at once: what is seen to be hidden is the executor's calls
//                         and windows, and not its kernels' bytes. So it does not tell whether
//                         kernels ran side by side.
//   products of matrices  bound by arithmetic, with the device's memory all but idle: what of
//                         reductions runs during them is hidden too, in addition to calls and
//                         windows, which these hide as passes do.
//
// So of a share during products only the excess over the share during passes can be kernels. The
// ratio of its row says how much of the work is kernels at all: to the same copies and sums on one
// stream, enqueued at once and waited for once. The vote is hidden by nothing: a session waits for
// the GPU before it asks for a step.
//
// Kernels of two processes take turns on a GPU unless both are clients of MPS, which is when a
// share during products says something of an executor that is a process; streams of one process
// need none.
//
// Products are cuBLAS's, as those of a model are, with the room that these leave on a GPU for other
// kernels; a kernel of ours that only computes would leave another. So where a machine has no
// cuBLAS they are absent. One count serves both executors: as many as take about three times as
// long as the work of the one that is longer alone, and at least one for each of a unit's three
// parts, of which two are in backward. So products of backward take longer than the work, also
// where the count is off by all that it may be, a unit's longer than its reduction, and the share
// is of the work. They leave the gradients that passes made.
//
// What no share here tells:
//   - that of a model, whose compute is between these two, and whose kernels leave other room
//   - why kernels did not run side by side. All streams here have the least priority, as a
//     trainer's have that says nothing, and none is the default stream; but streams may share a
//     queue of the driver's, which CUDA_DEVICE_MAX_CONNECTIONS bounds, and wait for each other
//     there, and clocks may fall where both are busy
//   - that something was left that could be hidden: the last unit's reduction and the vote have no
//     compute during them, so 1 is out of reach by about a unit's part and a vote's
//   - differences below the noise of the compute: what that is off by, in parts of itself, is off
//     in the share by as many times as it is longer than the work
//
// Gradients have an infinity on purpose, so that every vote skips its step: an update comes when
// all is reduced and nothing computes any more, and would be in the share as work that nothing
// hides.
#ifndef TESSERA_TESTS_GPU_STEP_OVERLAP_H_
#define TESSERA_TESTS_GPU_STEP_OVERLAP_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/gpu_step_bench.h"
#include "tests/gpu/machine_libraries.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

struct StepOverlapOptions {
  StepBenchOptions steps;
  // In the place of that of `steps`, which is a model's: with 15 the passes would take some ten
  // times as long as the work, and 1 % of noise in them be a tenth of a share.
  int forward_passes = 2;
  // Of the matrices' rows and columns: so many that a product has hundreds of operations for each
  // byte that it must move, and meant to be so few that a unit has several in the time of its work.
  int product_size = 2048;
  std::function<double()> host_seconds = {};  // A clock of the host; empty: the steady one.
};

// Asked once the rows of passes are added, since a library may end the process.
using GemmLoader = std::function<absl::StatusOr<Gemm*>()>;
// Keeps rows that are measured. An error ends the benchmark.
using AddRows = std::function<absl::Status(const std::vector<BenchRow>& rows)>;

// For each kind of compute rows of the times, in microseconds of a step, and of the shares: of
// passes first. Rounds are interleaved. `load_gemm` is of matrices of that size, on the GPU; where
// it is NotFound the products are a row that is absent, with its message, and for any other error
// of them a row with the error, in addition to the rows of the passes. Errors: those of the
// device, of the jobs and of `add`
absl::Status BenchStepOverlap(const testing_support::GpuUnderTest& gpu, StepOverlapOptions options,
                              const GemmLoader& load_gemm, const AddRows& add);

// Of each round. Pure.
std::vector<double> HiddenShares(const std::vector<double>& compute,
                                 const std::vector<double>& work, const std::vector<double>& both);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_STEP_OVERLAP_H_
