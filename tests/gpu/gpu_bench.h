// What a GPU's memory and our kernels on it reach, measured on the device by its own events.
//
//   round 1   copy │ AdamW │ casts │ measure │ host copies │ import │ launch     each some times
//   round 2   copy │ ...                                                         over
//
// A kernel's rate is the bytes that it must move at the least, by the time that it takes; its ratio
// is to the device's own copy in the same round, so that what slows both does not count. What is
// measured is an argument, so that all of this runs over a fake device too.
#ifndef TESSERA_TESTS_GPU_GPU_BENCH_H_
#define TESSERA_TESTS_GPU_GPU_BENCH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"
#include "tests/gpu/bench_row.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace gpu_check {

// The kernels that are measured; each enqueues. See worker/device/cuda/gpu_kernels.h.
class MeasuredKernels {
 public:
  virtual ~MeasuredKernels() = default;
  // In place, and rounded to bf16.
  virtual absl::Status Adam(CudaStreamHandle* stream, int64_t count, const float* gradient,
                            float* p, float* m, float* v, uint16_t* published) = 0;
  virtual absl::Status Cast(CudaStreamHandle* stream, DType from_dtype, const void* from,
                            DType to_dtype, void* to, int64_t count, double scale) = 0;
  virtual absl::Status Measure(CudaStreamHandle* stream, const float* values, int64_t count,
                               host::GradientStats* stats) = 0;
  // Of all `ranks` at once, into `sum`, and its measure in the same pass, unless `stats` is null.
  virtual absl::Status Sum(CudaStreamHandle* stream, absl::Span<const void* const> ranks,
                           int64_t count, float* sum, host::GradientStats* stats) = 0;
  virtual absl::Status Touch(CudaStreamHandle* stream, float* value) = 0;  // One element.
};

// The floors: bytes that cross the device's memory bus even if caches keep whatever can be kept.
// The arrays are larger than any cache, so each is read once and written once.
//
// A copy reads and writes each byte.
constexpr int64_t CopyFloorBytes(int64_t size_bytes) { return 2 * size_bytes; }
// AdamW reads gradient, p, m and v, fp32 each, and writes p, m, v and p as bf16: 16 + 12 + 2.
constexpr int64_t AdamFloorBytes(int64_t count) { return 30 * count; }
// A cast reads one width and writes the other.
constexpr int64_t CastFloorBytes(int64_t count) { return (4 + 2) * count; }
// The norm and the finite check read each fp32 once, and write a double for each 2048 of them,
// which is not counted.
constexpr int64_t MeasureFloorBytes(int64_t count) { return 4 * count; }

// A sum reads the fp32 of each rank, and writes one.
constexpr int kSummedRanks = 4;
constexpr int64_t SumFloorBytes(int64_t count) { return (kSummedRanks + 1) * 4 * count; }
// What a version of the state has: p, m and v.
constexpr int kSnapshotArrays = 3;

struct BenchOptions {
  int rounds = 15;
  int warm_up_rounds = 2;  // Before them, and not counted.
  int repeats = 8;         // Of a copy or kernel between two events.
  // Of each fp32 array; less where the device has not 16 times as much free.
  int64_t array_bytes = int64_t{512} << 20;
  int64_t region_bytes = int64_t{64} << 20;   // What is imported and mapped.
  std::function<double()> host_seconds = {};  // A clock of the host; empty: the steady one.
};

inline constexpr int64_t kMinArrayBytes = 64 << 10;

// How large arrays are where `free_bytes` are free; a multiple of kMinArrayBytes. Pure.
// Errors: ResourceExhausted  no room for arrays of kMinArrayBytes
absl::StatusOr<int64_t> ArrayBytes(int64_t wanted_bytes, int64_t free_bytes);

// A row for each figure, in a fixed order; one that cannot be measured says why, and the others
// are measured all the same.
// Errors: ResourceExhausted  no memory for what is measured
//         FailedPrecondition, Internal, Unavailable  the device: see cuda_error.h
absl::StatusOr<std::vector<BenchRow>> BenchGpu(CudaDevice* device, MeasuredKernels* kernels,
                                               const BenchOptions& options);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_GPU_BENCH_H_
