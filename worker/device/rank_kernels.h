// What an engine does to the memory of its rank, wherever that is: on the host, or on a GPU.
//
//   engine's thread         ──► RankKernels ──► copies, optimizer       one object for each row of
//   post-backward stream    ──► RankKernels ──► sums, measures          work; rows run side by side
//
// What is called returns nothing: its work is enqueued, in order, and has an error or none once
// Finish says so. Before Finish what it reads and writes must stay, and means nothing to others.
// The first error stays; later work may do nothing. Counts are ELEMENTS, sizes BYTES. Results have
// the same bits on every kind of memory. One thread calls an object at a time.
#ifndef TESSERA_WORKER_DEVICE_RANK_KERNELS_H_
#define TESSERA_WORKER_DEVICE_RANK_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"
#include "layout/values.h"
#include "shm/shared_event.h"
#include "worker/device/buffer.h"

namespace tessera {

// One update: see host::AdamStep and host::SgdStep, whose momentum is `m` here. All but the half
// copy are of `dtype`, fp32 or fp64. What is published goes nowhere where null.
struct UpdateArrays {
  DType dtype = DType::kFp32;
  int64_t count = 0;
  const void* gradient = nullptr;
  const void* p_in = nullptr;
  const void* m_in = nullptr;
  const void* v_in = nullptr;
  void* p_out = nullptr;
  void* m_out = nullptr;
  void* v_out = nullptr;
  void* publish_full = nullptr;
  host::HalfOutput publish_half;
};

class RankKernels {
 public:
  virtual ~RankKernels() = default;

  // Between two runs that do not overlap, each of this device or of host memory.
  virtual void Copy(void* to, const void* from, int64_t size_bytes) = 0;
  virtual void Clear(void* at, int64_t size_bytes) = 0;  // To zero.

  virtual void AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) = 0;
  virtual void SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) = 0;
  // Rounds; fp64 by way of fp32.
  virtual void CastToHalf(ConstValues from, host::HalfOutput to) = 0;
  virtual void RoundToHalf(DType half, Values values) = 0;  // There and back.
  // See host::ReduceSlices; `inputs` are read at once. Adds the measure of what was written to
  // what the next TakeStats returns, if `measure`.
  virtual void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count,
                      double scale, bool accumulate, host::SumOutput output, bool measure) = 0;
  virtual void Measure(ConstValues gradient) = 0;  // For TakeStats, too.
  // Adds the part of a p-norm that these are to what the next TakeNormPart returns, for norms that
  // TakeStats has not. p > 0.
  virtual void AddToNormPart(ConstValues gradient, double p) = 0;

  // Marks what was called so far. Of this device.
  virtual void Record(SharedEvent*) {}
  // What is called from now on waits for what a stream of the device's own kind (CUDA's CUstream)
  // was given so far.
  virtual void WaitForStream(void*) {}

  // Waits until all that was called is done. Errors: those of the device, whichever code caused
  // them; from then on nothing works on it any more, and the process that uses it must end.
  virtual absl::Status Finish() = 0;
  // Does so, and hands out what was measured since the last time. `stats`: not touched on error.
  virtual absl::Status TakeStats(host::GradientStats* stats) = 0;
  virtual absl::StatusOr<double> TakeNormPart() = 0;

  // Host memory, pinned if possible, so that copies are fast; undefined content.
  // Errors: ResourceExhausted  no memory
  virtual absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_RANK_KERNELS_H_
