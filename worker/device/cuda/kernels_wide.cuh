// How kernels walk through arrays: 16 bytes at a time if all of a kernel's arrays allow it, and
// element by element before that part, after it, and if they do not.
//
//   element   0     head                            head + packs * kPack      count
//             │ one │ a pack a thread, each array's at a multiple of its size │ one │
//
// A pack is as many elements as 16 bytes of the kernel's narrowest dtype hold, so of wider ones it
// is several accesses. If no head aligns all arrays there are no packs. Which thread takes which
// element never changes a result: each element is computed on its own.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNELS_WIDE_CUH_
#define TESSERA_WORKER_DEVICE_CUDA_KERNELS_WIDE_CUH_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "worker/device/cuda/kernels_common.cuh"

namespace tessera {
namespace gpu {

constexpr int kWideBytes = 16;

constexpr int Smallest(std::initializer_list<int> numbers) {
  int smallest = *numbers.begin();
  for (const int number : numbers) smallest = number < smallest ? number : smallest;
  return smallest;
}

// Elements of a pack.
template <typename... T>
constexpr int kPackOf = kWideBytes / Smallest({static_cast<int>(sizeof(T))...});

template <typename T, int kCount>
struct Pack {
  T at[kCount];
};

// `kCount` elements in accesses of 16 bytes, or in one of as many as they have. Their address is a
// multiple of the access.
template <int kCount, typename T>
__device__ inline Pack<T, kCount> Load(const T* from) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kAccess = kBytes < kWideBytes ? kBytes : kWideBytes;
  Pack<T, kCount> pack;
  if constexpr (kCount == 1) {
    pack.at[0] = *from;
  } else {
    Word<kAccess> words[kBytes / kAccess];
#pragma unroll
    for (int k = 0; k < kBytes / kAccess; ++k) words[k] = LoadWord<kAccess>(from, k);
    memcpy(&pack, words, kBytes);
  }
  return pack;
}

template <int kCount, typename T>
__device__ inline void Store(T* to, const Pack<T, kCount>& pack) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kAccess = kBytes < kWideBytes ? kBytes : kWideBytes;
  if constexpr (kCount == 1) {
    *to = pack.at[0];
  } else {
    Word<kAccess> words[kBytes / kAccess];
    memcpy(words, &pack, kBytes);
#pragma unroll
    for (int k = 0; k < kBytes / kAccess; ++k) StoreWord<kAccess>(to, k, words[k]);
  }
}

// An array that a kernel reads or writes; null: none.
struct Array {
  const void* at;
  int element_bytes;
};

template <typename T>
Array ArrayOf(const T* at) {
  return {at, static_cast<int>(sizeof(T))};
}

// Whether packs of `pack` elements can begin at element `first` of each array.
template <typename Arrays>
bool IsWideAt(const Arrays& arrays, int pack, int64_t first) {
  for (const Array& array : arrays) {
    const int64_t bytes = int64_t{pack} * array.element_bytes;
    const uint64_t address = reinterpret_cast<uintptr_t>(array.at) + first * array.element_bytes;
    const uint64_t access = bytes < kWideBytes ? bytes : kWideBytes;
    if (array.at != nullptr && address % access != 0) return false;
  }
  return true;
}

struct Walk {
  int64_t count;
  int64_t head = 0;
  int64_t packs = 0;
};

template <typename Arrays>
Walk WalkOver(int64_t count, int pack, const Arrays& arrays) {
  for (int head = 0; head < pack && head + pack <= count; ++head) {
    if (IsWideAt(arrays, pack, head)) return {count, head, (count - head) / pack};
  }
  return {count};
}
inline Walk WalkOver(int64_t count, int pack, std::initializer_list<Array> arrays) {
  return WalkOver<std::initializer_list<Array>>(count, pack, arrays);
}

// Blocks of threads in which each thread takes one pack, or one element.
inline int64_t BlocksOf(const Walk& walk, int pack) {
  const int64_t singles = walk.count - walk.packs * pack;
  const int64_t threads = walk.packs > singles ? walk.packs : singles;
  return (threads + kThreads - 1) / kThreads;
}

__device__ inline int64_t First() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t Stride() { return int64_t{gridDim.x} * blockDim.x; }

// Calls `body(n, i)` for all elements: for the n::value of them that begin at i.
template <int kPack, typename Body>
__device__ inline void ForEach(const Walk& walk, Body body) {
  for (int64_t k = First(); k < walk.packs; k += Stride()) {
    body(std::integral_constant<int, kPack>(), walk.head + k * kPack);
  }
  const int64_t in_packs = walk.packs * kPack;
  for (int64_t k = First(); k < walk.count - in_packs; k += Stride()) {
    body(std::integral_constant<int, 1>(), k < walk.head ? k : k + in_packs);
  }
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNELS_WIDE_CUH_
