// What the kernels' files need of CUDA, by threads of the host, for tests: so compiled by the CPU's
// compiler their grids, tails, barriers and shared memory run where no device is.
//
//   a launch   runs at once: one block of threads after the other
//   a block    real threads, which meet at barriers; what is shared is static
//
// A wide access at an address that is not a multiple of it ends the program, as it would the
// kernel.
//
// What it cannot show: threads of a warp that continue without a barrier (here a shuffle is one of
// the whole block), how a device orders memory, its pow(), limits of a launch, and any speed.
// One launch runs at a time, whichever threads launch. Included by kernels_common.cuh alone.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNEL_EMULATOR_H_
#define TESSERA_WORKER_DEVICE_CUDA_KERNEL_EMULATOR_H_

#include <math.h>  // For isfinite without std.

#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __shared__ static

namespace tessera {
namespace gpu {

constexpr int kThreads = 64;  // Of a block: two warps.
constexpr int kMeasureThreads = 64;
constexpr int64_t kResidentBlocks = 4;

struct EmulatedIndex {
  unsigned x = 0;
};
inline thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

void RunEmulated(int blocks, const std::function<void()>& kernel);

void __syncthreads();
int __syncthreads_or(int vote);
unsigned long long __shfl_down_sync(unsigned mask, unsigned long long value, int offset);

inline void atomicAdd(unsigned long long* to, unsigned long long value) {
  __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

// Of kBytes at once, which a device does only at multiples of as many.
template <int kBytes>
struct Word {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "a device has no such access");
  char bytes[kBytes];
};

// Counts it (see emulated_accesses.h), and ends the program where a device would end the kernel.
void CheckAccess(const void* address, int size_bytes);

template <int kBytes>
Word<kBytes> LoadWord(const void* from, int index) {
  Word<kBytes> word;
  const void* const address = static_cast<const char*>(from) + index * kBytes;
  CheckAccess(address, kBytes);
  memcpy(&word, address, kBytes);
  return word;
}
template <int kBytes>
void StoreWord(void* to, int index, Word<kBytes> word) {
  void* const address = static_cast<char*>(to) + index * kBytes;
  CheckAccess(address, kBytes);
  memcpy(address, &word, kBytes);
}

template <auto kKernel, int kThreadsOfBlock = kThreads, typename... Args>
int Launch(void* /*stream*/, int64_t blocks, Args... args) {
  static_assert(kThreadsOfBlock == kThreads, "one size of blocks is emulated");
  RunEmulated(static_cast<int>(blocks < kResidentBlocks ? blocks : kResidentBlocks),
              [&] { kKernel(args...); });
  return 0;
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNEL_EMULATOR_H_
