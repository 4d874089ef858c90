// What the kernels' files share: launches, wide accesses, and a choice by dtype.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_
#define TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_

#include <cstdint>
#include <type_traits>

#include "worker/device/cuda/kernel_launch.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace tessera {
namespace gpu {

constexpr int kThreads = 256;        // Of a block.
constexpr int kMeasureThreads = 64;  // Of one that measures: few, so that small arrays fill a GPU.

// Of 4, 8 and 16 bytes: what a thread loads and stores at once.
template <int kBytes>
using Word = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, uint>>;

template <int kBytes>
__device__ inline Word<kBytes> LoadWord(const void* from, int index) {
  static_assert(sizeof(Word<kBytes>) == kBytes, "there is no such access");
  return static_cast<const Word<kBytes>*>(from)[index];
}
template <int kBytes>
__device__ inline void StoreWord(void* to, int index, Word<kBytes> word) {
  static_assert(sizeof(Word<kBytes>) == kBytes, "there is no such access");
  static_cast<Word<kBytes>*>(to)[index] = word;
}

// How many blocks of this kernel the current device can have at once; asked once for each of both.
// Returns CUDA's number for what that said, and 0 where all is well.
int ResidentBlocks(const void* kernel, int threads, int64_t* blocks);

// A kernel that something here launches, in the list that LoadKernels() goes through.
struct ListedKernel {
  ListedKernel(const void* kernel, int threads);

  const void* const kernel;
  const int threads;
  const ListedKernel* const next;
};
// One for each kernel and size of blocks: made as the program starts.
template <auto kKernel, int kThreadsOfBlock>
struct Listing {
  static inline const ListedKernel listed{reinterpret_cast<const void*>(kKernel), kThreadsOfBlock};
};

// No more blocks than run at once, each thread takes every so many-th piece of the work, and no
// block has more than one piece more than another.
// Returns the error of the launch itself; what a kernel does wrong later breaks the context.
template <auto kKernel, int kThreadsOfBlock = kThreads, typename... Args>
int Launch(void* stream, int64_t blocks, Args... args) {
  const ListedKernel& listed = Listing<kKernel, kThreadsOfBlock>::listed;
  int64_t resident = 0;
  const int asked = ResidentBlocks(listed.kernel, listed.threads, &resident);
  if (asked != 0) return asked;
  const int64_t rounds = blocks > resident ? (blocks + resident - 1) / resident : 1;
  const auto grid = static_cast<unsigned>((blocks + rounds - 1) / rounds);
  kKernel<<<grid, kThreadsOfBlock, 0, static_cast<cudaStream_t>(stream)>>>(args...);
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

// As ByType, of FP8 too.
template <typename Body>
int ByElement(int type, Body body) {
  if (type == kFp8E4M3) return body(static_cast<Fp8E4M3*>(nullptr));
  if (type == kFp8E5M2) return body(static_cast<Fp8E5M2*>(nullptr));
  return ByType(type, body);
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNELS_COMMON_CUH_
