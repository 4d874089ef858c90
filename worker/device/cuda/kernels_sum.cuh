// The sum of the ranks' slices, as the kernels have it that make something of it.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNELS_SUM_CUH_
#define TESSERA_WORKER_DEVICE_CUDA_KERNELS_SUM_CUH_

#include "worker/device/cuda/kernels_wide.cuh"

namespace tessera {
namespace gpu {

// Of `kCount` elements from i on, in the order of the inputs, and times `scale`.
template <int kCount, typename T, typename Sum>
__device__ inline Pack<Sum, kCount> SumOf(const Inputs& inputs, int64_t i, Sum scale) {
  const auto first = Load<kCount>(static_cast<const T*>(inputs.at[0]) + i);
  Pack<Sum, kCount> sum;
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum.at[k] = static_cast<Sum>(Widen(first.at[k]));
#pragma unroll 4
  for (int r = 1; r < inputs.count; ++r) {
    const auto next = Load<kCount>(static_cast<const T*>(inputs.at[r]) + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum.at[k] = sum.at[k] + static_cast<Sum>(Widen(next.at[k]));
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum.at[k] = sum.at[k] * scale;
  return sum;
}

// The arrays of a walk over the inputs and what comes of them.
template <int kOthers>
struct SumArrays {
  SumArrays(const Inputs& inputs, int element_bytes, const Array (&others)[kOthers]) {
    for (int r = 0; r < inputs.count; ++r) at[size++] = {inputs.at[r], element_bytes};
    for (const Array& other : others) at[size++] = other;
  }
  const Array* begin() const { return at; }
  const Array* end() const { return at + size; }

  Array at[kMaxInputs + kOthers];
  int size = 0;
};

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNELS_SUM_CUH_
