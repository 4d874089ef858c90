// What the kernels' files share: grids, and a choice by dtype.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_
#define TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_

#include <type_traits>

#include "worker/device/cuda/kernel_launch.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace tessera {
namespace gpu {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

// Returns the error of the launch itself; what a kernel does wrong later breaks the context.
template <typename... Params, typename... Args>
int Launch(void* stream, int blocks, void (*kernel)(Params...), Args... args) {
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args...);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace gpu
}  // namespace tessera

#else

#include "worker/device/cuda/kernel_emulator.h"

#endif

namespace tessera {
namespace gpu {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE.

// Enough blocks to fill any device; each thread takes every so many-th element.
inline int Blocks(int64_t count) {
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  return static_cast<int>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
}

__device__ inline int64_t First() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t Stride() { return int64_t{gridDim.x} * blockDim.x; }

// Calls `body` with a null pointer of the dtype's element type.
template <typename Body>
int ByType(int dtype, Body body) {
  switch (dtype) {
    case 0:
      return body(static_cast<float*>(nullptr));
    case 1:
      return body(static_cast<Bf16*>(nullptr));
    case 2:
      return body(static_cast<Fp16*>(nullptr));
    case 3:
      return body(static_cast<double*>(nullptr));
  }
  return kInvalidValue;
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_
