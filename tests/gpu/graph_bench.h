// What it costs the processor to launch a step's work on the device, unit by unit and as a CUDA
// graph.
//
//   one by one   sum and measure │ AdamW and bf16 │ sum and measure │ ...      three launches a
//   unit a graph      all of them                                                  one launch
//
// A step of a job decides between its reductions and its updates whether it counts, on the
// processor and with all ranks, so it is no graph as a whole: these are the limits of what would
// be.
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

// Rows in microseconds a unit, until the calls return. That of the graph has a ratio to the others,
// and one to a microsecond, with its aim. Both ways leave the same bits, or it is an error.
// Errors: ResourceExhausted  no memory for it
//         DataLoss           the two ways differ
//         FailedPrecondition, Internal, Unavailable  the device: see cuda_error.h
absl::StatusOr<std::vector<BenchRow>> BenchGraph(CudaDevice* device, MeasuredKernels* kernels,
                                                 GraphBenchOptions options);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_GRAPH_BENCH_H_
