// What it costs the CPU to launch the work of a step's two halves on the device, kernel by kernel
// and as CUDA graphs.
//
//   one by one   copy in, sum and measure │ copy in, ...   ║   AdamW and bf16 │ AdamW ...
//   graphs       a unit's                 │ the next one's ║   all units'
//
// At the double bars a step of a job decides whether it counts, on the CPU and with all ranks, so
// it is not a graph as a whole. Of the first half each unit has a graph of its own: its ranks meet
// on the CPU before and after it, and a graph of all would begin when the last gradient is
// there. No step of a job launches a graph of either half yet: these are the limits of
// what one would cost. See
// docs/adr/0051-a-step-is-not-a-cuda-graph.md.
//
// The first half is that of a rank whose gradients nobody else sums: what travels between GPUs by
// NCCL is not in it. Its copy is the trainer's and its sum the executor's: one graph has both only
// where the executor is in the trainer and both give up streams of their own, so this is the least.
#ifndef TESSERA_TESTS_GPU_GRAPH_BENCH_H_
#define TESSERA_TESTS_GPU_GRAPH_BENCH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/gpu_bench.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace gpu_check {

struct GraphBenchOptions {
  int rounds = 31;
  int warm_up_rounds = 3;  // Before them, and not counted.
  int num_units = 24;
  int64_t unit_numel = 4096;  // Of each; small, so that the device is done before the next launch.
  std::function<double()> host_seconds = {};  // A clock of the host; empty: the steady one.
};

// Rows in microseconds a unit, until the calls return: of each half its launches and then its
// graphs, which have a ratio to them; and last of a unit's graph of the first half together with
// its part of that of the second, with a ratio to a microsecond and its aim. Both ways leave the
// same bits, or it is an error.
// Errors: ResourceExhausted  no memory for it
//         DataLoss           the two ways differ
//         FailedPrecondition, Internal, Unavailable  the device: see cuda_error.h
absl::StatusOr<std::vector<BenchRow>> BenchGraph(CudaDevice* device, MeasuredKernels* kernels,
                                                 GraphBenchOptions options);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_GRAPH_BENCH_H_
